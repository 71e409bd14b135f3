//! Lines of records on their way to the pool's file, with few system calls: where lines lie near one another, what lies between them is read
//! from the file, and written again with them.
//!
//! That changes nothing. All of it is what durable commits hold: only checkpoints, one at a time, and recovery write to these pages, but for
//! the first one. A crash leaves of each sector what was there before or after, as without it, and the bytes in between are the same in both.
//! The first page has the pool's header, which is written past the journal: of that page lines are written and nothing else.
//!
//! Of a page that the system cannot read the lines are written alone. Where it cannot write a part of such a page either, the whole page
//! is, with zeroes for what could not be read: the checksums say that it is damaged, unless all of it is new.

use super::layout::Images;
use super::notes::{PAGE, PAGE_LINES};
use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::line::LINE;

/// Pages that are read and written at a time.
pub(super) const TOGETHER: usize = 64;

/// Writes all lines to the pool's file, ascending. Nothing is durable yet.
pub(crate) fn carry(backing: &dyn Backing, images: &Images) -> Result<()> {
    let (pages, len) = (images.pages(), backing.len()?);
    let (header, pages) = pages.split_at(usize::from(pages.first() == Some(&0)));
    if !header.is_empty() {
        let mut lines = images.iter().take_while(|(line, _)| *line < PAGE_LINES);
        lines.try_for_each(|(line, bytes)| backing.write(line * LINE as u64, bytes))?;
    }
    let mut bytes = vec![[0; PAGE as usize]; TOGETHER.min(pages.len())];
    for run in pages.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(TOGETHER)) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let skipped = images.lines_of(first).trailing_zeros() as usize * LINE;
        let left_out = images.lines_of(last).leading_zeros() as usize * LINE;
        let bytes = &mut bytes[..run.len()];
        if run.len() > 1 || has_gap(images.lines_of(first)) {
            let flat = bytes.as_flattened_mut();
            let there = len.saturating_sub(first * PAGE).min(flat.len() as u64) as usize;
            match backing.read(first * PAGE, &mut flat[..there]) {
                Err(error) if is_unreadable(&error) => {
                    run.iter().try_for_each(|page| carry_page(backing, images, *page, len))?;
                    continue;
                }
                read => read?,
            }
            flat[there..].fill(0);
        }
        for (page, bytes) in run.iter().zip(&mut *bytes) {
            images.overlay(*page, bytes);
        }
        let flat = bytes.as_flattened();
        backing.write(first * PAGE + skipped as u64, &flat[skipped..flat.len() - left_out])?;
    }
    Ok(())
}

/// One page of those that could not be read together.
fn carry_page(backing: &dyn Backing, images: &Images, page: u64, len: u64) -> Result<()> {
    let (at, mut bytes, mask) = (page * PAGE, [0; PAGE as usize], images.lines_of(page));
    let there = len.saturating_sub(at).min(PAGE) as usize;
    if mask == u64::MAX {
        images.overlay(page, &mut bytes);
        return backing.write(at, &bytes);
    }
    match backing.read(at, &mut bytes[..there]) {
        Err(error) if is_unreadable(&error) => {}
        read => {
            read?;
            images.overlay(page, &mut bytes);
            let (first, end) =
                (mask.trailing_zeros() as usize * LINE, bytes.len() - mask.leading_zeros() as usize * LINE);
            return backing.write(at + first as u64, &bytes[first..end]);
        }
    }
    bytes.fill(0);
    images.overlay(page, &mut bytes);
    let mut lines = (0..PAGE_LINES as usize).filter(|line| mask >> line & 1 == 1).map(|line| line * LINE);
    match lines.try_for_each(|line| backing.write(at + line as u64, &bytes[line..line + LINE])) {
        // The system reads a page to write a part of it. What cannot be read is lost.
        Err(error) if is_unreadable(&error) => backing.write(at, &bytes[..there]),
        written => written,
    }
}

/// Whether the system says that it cannot read something, or write it.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()))
}

/// Whether the lines of a page do not follow one another.
fn has_gap(mask: u64) -> bool {
    u64::from(mask.count_ones() + mask.leading_zeros() + mask.trailing_zeros()) != PAGE_LINES
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Draft, Place};
    use super::*;
    use crate::backing::FileBacking;

    #[test]
    fn lines_are_written_and_all_else_stays() {
        let len = 80 * PAGE as usize;
        let sets: [&[u64]; 5] = [&[0, 3], &[64, 66, 67], &[64 * 2 + 63, 64 * 3, 64 * 4 + 5], &[64 * 79 + 1], &[]];
        for lines in sets.iter().copied().chain([&*(64 * 2..64 * 78).step_by(7).collect::<Vec<_>>()]) {
            let before: Vec<u8> = (0..len).map(|at| (at / 64 % 251) as u8 + 1).collect();
            let dir = tempfile::tempdir().unwrap();
            let (backing, mut draft) = (FileBacking::create(dir.path().join("pool")).unwrap(), Draft::default());
            backing.write(0, &before).unwrap();
            draft.clear();
            lines.iter().for_each(|line| draft.push(*line, &[u64::MAX; 8]));
            let mut images = Images::default();
            assert!(images.add(draft.seal(Place::default())));
            carry(&backing, &images).unwrap();
            let mut found = vec![0; len];
            backing.read(0, &mut found).unwrap();
            for (line, (found, before)) in found.chunks(64).zip(before.chunks(64)).enumerate() {
                let expected = if lines.contains(&(line as u64)) { &[0xff; 64] } else { before };
                assert_eq!(found, expected, "line {line} of {lines:?}");
            }
        }
    }
}
