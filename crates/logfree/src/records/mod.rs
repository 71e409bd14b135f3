//! What is longer than a word, by indirection: records, and the maps that lead to them.
//!
//! A map of words leads to a record by the offset that it holds for a value. A record holds its key and any number of bytes, is
//! written before a node leads to it, and never changes afterwards: a new value is a new record. The memory of records, with
//! the persist order (LF-I1 to LF-I9) and recovery, is `pages/units`; the format is in `layout.rs`.
//!
//! | module | what it holds |
//! |---|---|
//! | `record` | reading and writing records |
//! | `words` | what a map of words says of its records |
//! | `blobs` | [`Blobs`]: 8-byte keys, byte strings for values, over each of the maps with durable links |
//! | `store` | [`RecordStore`]: records for structures of other crates |
//! | `bytes` | [`BytesHash`]: byte strings for keys, too, over the hash table |
//!
//! | operation | write-backs and fences beyond those of the map of words |
//! |---|---|
//! | insert | the lines of the record and of its page's bitmap, if that is newly active; no fence, but one for pages newly active |
//! | update | the same; and one fence, if the page of the old record is not active in this session |
//! | remove | one fence, if the page of the record is not active in this session |
//! | reads, failed updates | none |
//!
//! # The races
//! *One reads a record, another replaces it.* The units are handed out again after a grace period, which waits for the reader's
//! operation. The reader's own operation is not waited for, so nothing is read from an offset that was found before the same operation
//! has taken a record out.
//!
//! *Two replace one value.* Each expects the value that it has read. One exchange succeeds, and that operation retires the old
//! record; the other looks again.
//!
//! *A value comes back.* Within an operation an offset stands for one record: what it has seen is not used again before it ends,
//! but by itself.

mod blobs;
mod bytes;
mod record;
mod store;
mod words;

pub(crate) use blobs::read_leftovers as read_blobs;
pub use blobs::{BlobBst, BlobHash, BlobList, BlobSkipList, Blobs};
pub(crate) use bytes::read_leftovers as read_bytes;
pub use bytes::{BytesHash, MAX_BYTES_VALUE, MAX_KEY};
pub use record::{MAX_VALUE, Record};
pub use store::RecordStore;
pub use words::RecordMap;
