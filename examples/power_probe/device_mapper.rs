//! The few calls of the kernel's device mapper that are needed, and mounting: as `dmsetup` and `mount` make them, without a process for
//! each.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// `struct dm_ioctl` of `linux/dm-ioctl.h`: bytes, and where its fields lie.
const HEAD: usize = 312;
const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const TARGETS: usize = 20;
const DEVICE: usize = 40;
const NAME: usize = 48;
/// `DM_NAME_LEN`, with the zero at its end.
const NAME_LEN: usize = 128;

/// Bytes of a call, its data included.
const ROOM: usize = 4096;

/// Commands: `DM_DEV_CREATE` and so on, as `_IOWR(0xfd, …, struct dm_ioctl)`.
const CREATE: u8 = 3;
const REMOVE: u8 = 4;
const RESUME: u8 = 6;
const LOAD: u8 = 9;
const MESSAGE: u8 = 14;

const fn request(command: u8) -> u64 {
    0xc000_0000 | (HEAD as u64) << 16 | 0xfd00 | command as u64
}

/// `/dev/mapper/control`.
pub struct DeviceMapper {
    control: File,
}

impl DeviceMapper {
    pub fn open() -> io::Result<DeviceMapper> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/mapper/control")?;
        Ok(DeviceMapper { control })
    }

    /// Makes a device of one target. Returns its path.
    pub fn create(&self, name: &str, sectors: u64, target: &str, parameters: &str) -> io::Result<PathBuf> {
        let made = self.call(CREATE, name, 0, &[])?;
        let device = u64::from_ne_bytes(made[DEVICE..DEVICE + 8].try_into().expect("eight bytes"));
        // `struct dm_target_spec`: first sector, sectors, status, next; the type in 16 bytes; then the parameters.
        let mut spec = [&[0; 8][..], &sectors.to_ne_bytes(), &[0; 8]].concat();
        spec.extend_from_slice(target.as_bytes());
        spec.resize(40, 0);
        spec.extend_from_slice(parameters.as_bytes());
        spec.push(0);
        let started = self.call(LOAD, name, 1, &spec).and_then(|_| self.call(RESUME, name, 0, &[]));
        if let Err(error) = started {
            let _ = self.remove(name);
            return Err(error);
        }
        let minor = device & 0xff | device >> 12 & !0xff;
        Ok(Path::new("/dev").join(format!("dm-{minor}")))
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.call(REMOVE, name, 0, &[]).map(drop)
    }

    /// Sends a message to the target at sector 0.
    pub fn message(&self, name: &str, message: &str) -> io::Result<()> {
        self.call(MESSAGE, name, 0, &[&[0; 8], message.as_bytes(), &[0]].concat()).map(drop)
    }

    fn call(&self, command: u8, name: &str, targets: u32, data: &[u8]) -> io::Result<Vec<u8>> {
        if name.len() >= NAME_LEN || HEAD + data.len() > ROOM {
            return Err(io::Error::other(format!("{name:?} or its data are too long for the device mapper")));
        }
        let mut call = vec![0; ROOM];
        // Version 4.0.0 of the interface.
        let fields = [(0, 4u32), (DATA_SIZE, ROOM as u32), (DATA_START, HEAD as u32), (TARGETS, targets)];
        for (at, field) in fields {
            call[at..at + 4].copy_from_slice(&field.to_ne_bytes());
        }
        call[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
        call[HEAD..HEAD + data.len()].copy_from_slice(data);
        // SAFETY: the kernel reads and writes no more than the `ROOM` bytes that the head names, which are ours, and which it copies.
        let done = unsafe { libc::ioctl(self.control.as_raw_fd(), request(command) as _, call.as_mut_ptr()) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(call) }
    }
}

fn text(text: impl AsRef<[u8]>) -> io::Result<CString> {
    Ok(CString::new(text.as_ref())?)
}

pub fn mount(device: &Path, folder: &str, kind: &str) -> io::Result<()> {
    let (device, folder, kind) = (text(device.as_os_str().as_encoded_bytes())?, text(folder)?, text(kind)?);
    // SAFETY: three strings that end with a zero, and no data.
    let done = unsafe { libc::mount(device.as_ptr(), folder.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub fn unmount(folder: &str) -> io::Result<()> {
    let folder = text(folder)?;
    // SAFETY: a string that ends with a zero.
    let done = unsafe { libc::umount2(folder.as_ptr(), 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
