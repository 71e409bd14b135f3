//! Types of the standard library beside integers and strings.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::part::{key_and_value, too_short, whole_is_part};
use super::tag::{self, TypeTag};
use super::{Decode, Encode, Key, Part, Unfit, Value};

whole_is_part!(f32, f64, Ipv4Addr, Ipv6Addr, IpAddr, Duration, SystemTime);
key_and_value!(f32, f64, Ipv4Addr, Ipv6Addr, IpAddr, Duration, SystemTime, OsString, PathBuf);

macro_rules! floats {
    ($($type:ty, $bits:ty, $code:expr;)*) => {$(
        impl Part for $type {
            const CODE: u8 = $code;

            fn encode_part(&self, out: &mut Vec<u8>) {
                let bits = self.to_bits();
                let sign = 1 << (<$bits>::BITS - 1);
                (if bits & sign == 0 { bits | sign } else { !bits }).encode_part(out);
            }

            fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
                let sign = 1 << (<$bits>::BITS - 1);
                let stored = <$bits>::decode_part(bytes)?;
                Ok(<$type>::from_bits(if stored & sign == 0 { !stored } else { stored ^ sign }))
            }
        }
    )*};
}

floats! {
    f32, u32, tag::F32;
    f64, u64, tag::F32 + 1;
}

/// Takes `count` bytes off the front.
fn take<const N: usize>(bytes: &mut &[u8], type_name: &str) -> Result<[u8; N], Unfit> {
    let (first, rest) = bytes.split_first_chunk().ok_or_else(|| too_short(type_name, bytes.len()))?;
    *bytes = rest;
    Ok(*first)
}

impl Part for Ipv4Addr {
    const CODE: u8 = tag::IPV4;

    fn encode_part(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        take::<4>(bytes, "Ipv4Addr").map(Ipv4Addr::from)
    }
}

impl Part for Ipv6Addr {
    const CODE: u8 = tag::IPV6;

    fn encode_part(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.octets());
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        take::<16>(bytes, "Ipv6Addr").map(Ipv6Addr::from)
    }
}

impl Part for IpAddr {
    const CODE: u8 = tag::IP;

    fn encode_part(&self, out: &mut Vec<u8>) {
        match self {
            IpAddr::V4(address) => {
                out.push(4);
                address.encode_part(out);
            }
            IpAddr::V6(address) => {
                out.push(6);
                address.encode_part(out);
            }
        }
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        match u8::decode_part(bytes)? {
            4 => Ipv4Addr::decode_part(bytes).map(IpAddr::V4),
            6 => Ipv6Addr::decode_part(bytes).map(IpAddr::V6),
            other => Err(Unfit(format!("{other} is no version of an IP address"))),
        }
    }
}

/// The nanoseconds within a second.
fn nanoseconds(bytes: &mut &[u8]) -> Result<u32, Unfit> {
    match u32::decode_part(bytes)? {
        nanoseconds @ ..1_000_000_000 => Ok(nanoseconds),
        other => Err(Unfit(format!("{other} nanoseconds are no part of a second"))),
    }
}

impl Part for Duration {
    const CODE: u8 = tag::DURATION;

    fn encode_part(&self, out: &mut Vec<u8>) {
        self.as_secs().encode_part(out);
        self.subsec_nanos().encode_part(out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        Ok(Duration::new(u64::decode_part(bytes)?, nanoseconds(bytes)?))
    }
}

impl Part for SystemTime {
    const CODE: u8 = tag::TIME;

    fn encode_part(&self, out: &mut Vec<u8>) {
        // The system keeps the seconds as an `i64`.
        let (seconds, nanoseconds) = match self.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => ((before.as_secs() as i64).wrapping_neg(), 0),
                    part => (-1 - before.as_secs() as i64, 1_000_000_000 - part),
                }
            }
        };
        seconds.encode_part(out);
        nanoseconds.encode_part(out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        let (seconds, nanoseconds) = (i64::decode_part(bytes)?, nanoseconds(bytes)?);
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let start = match seconds {
            0.. => SystemTime::UNIX_EPOCH.checked_add(whole),
            _ => SystemTime::UNIX_EPOCH.checked_sub(whole),
        };
        let time = start.and_then(|start| start.checked_add(Duration::new(0, nanoseconds)));
        time.ok_or_else(|| Unfit(format!("{seconds} seconds since 1970 are no time that this system knows")))
    }
}

impl Part for OsString {
    const CODE: u8 = tag::OS_STRING;

    fn encode_part(&self, out: &mut Vec<u8>) {
        super::part::encode_bytes(self.as_bytes(), out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        Vec::decode_part(bytes).map(OsString::from_vec)
    }
}

impl Part for PathBuf {
    const CODE: u8 = tag::PATH;

    fn encode_part(&self, out: &mut Vec<u8>) {
        super::part::encode_bytes(self.as_os_str().as_bytes(), out);
    }

    fn decode_part(bytes: &mut &[u8]) -> Result<Self, Unfit> {
        OsString::decode_part(bytes).map(PathBuf::from)
    }
}

impl Encode for OsStr {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_bytes().encode(out)
    }
}

impl Encode for OsString {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_os_str().encode(out)
    }
}

impl Encode for Path {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_os_str().encode(out)
    }
}

impl Encode for PathBuf {
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), Unfit> {
        self.as_os_str().encode(out)
    }
}

impl Decode for OsString {
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        Ok(OsString::from_vec(bytes.to_vec()))
    }
}

impl Decode for PathBuf {
    fn decode(bytes: &[u8]) -> Result<Self, Unfit> {
        OsString::decode(bytes).map(PathBuf::from)
    }
}
