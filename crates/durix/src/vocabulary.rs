//! What the facade takes from the layers below, with examples in the facade's terms: indices over bytes, and the pool they lie in.

/// What calls that can fail return.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// fn older(ages: &durix::Map<String, u64>, name: &str) -> durix::Result<Option<u64>> {
///     ages.update_with(name, |age| age.map(|age| age + 1))
/// }
///
/// let ages = db.map("ages")?;
/// ages.insert("ada", &36)?;
/// assert_eq!(older(&ages, "ada")?, Some(37));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Result;

/// What can go wrong. Each error is one line that says what happened, with the values, and what to do.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::Error;
///
/// db.map::<String, u64>("ages")?.insert("ada", &36)?;
/// match db.map::<String, String>("ages") {
///     Err(Error::WrongType { .. }) => println!("the map was made with other types"),
///     Err(other) => return Err(other),
///     Ok(_) => unreachable!(),
/// }
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Error;

/// An index over bytes: what every kind can do, in the caller's operation. [`Map`](crate::Map) is for typed keys and values.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::Index;
///
/// let index = db.open_index("raw", Some("pset"))?;    // any kind, bytes to bytes
/// let mut session = db.pool().session()?;
/// let op = session.enter()?;
/// index.insert(&op, b"ada", b"36")?;
/// assert_eq!(index.get_vec(&op, b"ada")?.as_deref(), Some(&b"36"[..]));
/// drop(op);
/// db.pool().settle(&mut session)?;                     // with a journal, this waits until it is durable
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Index;

/// An index over bytes that keeps the order of keys.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::{Direction, KeyRange};
///
/// let index = db.open_index("raw", Some("masstree"))?;
/// let ordered = index.as_ordered().expect("a masstree keeps the order of keys");
/// let mut session = db.pool().session()?;
/// let op = session.enter()?;
/// for key in [b"b", b"a", b"c"] {
///     index.insert(&op, key, b"")?;
/// }
/// let mut walk = ordered.range(&KeyRange::all(), Direction::Backward);
/// assert_eq!(walk.next(&op)?, Some((&b"c"[..], &b""[..])));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::OrderedIndex;

/// A walk over the pairs of an index over bytes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let index = db.open_index("raw", Some("pset"))?;
/// let mut session = db.pool().session()?;
/// index.insert(&session.enter()?, b"ada", b"36")?;
/// let mut cursor = index.cursor();
/// while let Some((key, value)) = cursor.next(&session.enter()?)? {
///     println!("{}: {}", key.escape_ascii(), value.escape_ascii());
/// }
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Cursor;

/// Which way a walk over an index over bytes goes. Walks over maps have `.rev()`.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::{Direction, KeyRange};
///
/// let index = db.open_index("raw", Some("masstree"))?;
/// let mut session = db.pool().session()?;
/// let op = session.enter()?;
/// index.insert(&op, b"a", b"first")?;
/// index.insert(&op, b"b", b"last")?;
/// let ordered = index.as_ordered().unwrap();
/// let mut down = ordered.range(&KeyRange::all(), Direction::Backward);
/// assert_eq!(down.next(&op)?.map(|(key, _)| key), Some(&b"b"[..]));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Direction;

/// A range of keys in bytes.
///
/// ```
/// use std::ops::Bound;
///
/// use durix::KeyRange;
///
/// assert!(KeyRange::prefix(b"ab").contains(b"abc"));
/// let range = KeyRange::new(Bound::Included(b"a"), Bound::Excluded(b"c"));
/// assert!(range.contains(b"b") && !range.contains(b"c"));
/// ```
#[doc(inline)]
pub use durix_index::KeyRange;

/// Changes to an index over bytes. [`MapBatch`](crate::MapBatch) is for maps.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::Batch;
///
/// let index = db.open_index("raw", Some("pset"))?;
/// let mut batch = Batch::new();
/// batch.insert(b"ada", b"36").insert(b"grace", b"85").remove(b"alan");
/// let mut session = db.pool().session()?;
/// index.apply(&session.enter()?, &batch)?;             // a crash leaves all of it, or nothing
/// db.pool().settle(&mut session)?;
/// assert!(index.batch_is_atomic());
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Batch;

/// What a [`Batch`] does to a key: a new value, or `None` for its removal.
///
/// ```
/// use durix::{Batch, Change};
///
/// let mut batch = Batch::new();
/// batch.insert(b"ada", b"36").remove(b"alan");
/// let changes: Vec<(&[u8], Change)> = batch.iter().collect();
/// assert_eq!(changes[1], (&b"alan"[..], None));        // a removal
/// ```
#[doc(inline)]
pub use durix_index::Change;

/// Pairs of bytes that a walk has read, in one buffer.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use std::ops::Bound;
///
/// use durix::{Direction, Pairs};
///
/// let index = db.open_index("raw", Some("masstree"))?;
/// let mut session = db.pool().session()?;
/// let op = session.enter()?;
/// index.insert(&op, b"ada", b"36")?;
/// let mut pairs = Pairs::new();
/// let all = (Bound::Unbounded, Bound::Unbounded);
/// index.as_ordered().unwrap().read_range(&op, all, Direction::Forward, 10, &mut pairs)?;
/// assert_eq!(pairs.len(), 1);
/// assert_eq!(pairs.last(), Some((&b"ada"[..], &b"36"[..])));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Pairs;

/// The greatest lengths that an index takes, in bytes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let index = db.open_index("raw", Some("pset"))?;
/// let limits = index.limits();
/// assert!(limits.check(b"a key", Some(b"a value")).is_ok());
/// assert!(limits.check(&[0; 100_000], None).is_err());
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Limits;

/// Which lengths of keys, or of values, an index takes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::Lengths;
///
/// let hash = db.open_index("raw", Some("hash"))?;
/// assert_eq!(hash.limits().key, Lengths::Exactly(8));
/// assert!(!hash.limits().key.allow(9));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Lengths;

/// What a caller waits for until everything that was done before is durable.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let words = db.ordered_map::<String, u64>("words")?;
/// words.insert("tree", &1)?;
/// let ticket = words.ticket()?;                        // stands for all that was done before
/// words.wait(ticket)?;                                 // durable from here on
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Ticket;

/// An inconsistency that a check has found.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let ages = db.map::<String, u64>("ages")?;
/// ages.insert("ada", &36)?;
/// for finding in ages.check()? {
///     println!("{finding}");                           // nothing: the map is sound
/// }
/// # assert!(ages.check()?.is_empty());
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::Finding;

/// The number of keys of an index, and the space that it takes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let ages = db.map::<String, u64>("ages")?;
/// ages.insert("ada", &36)?;
/// let stats = ages.stats()?;
/// println!("{} keys in {} bytes", stats.keys, stats.persistent_bytes);
/// # assert_eq!(stats.keys, 1);
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_index::IndexStats;

/// When a change of an index is durable.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::Durability;
///
/// let (ages, words) = (db.map::<String, u64>("ages")?, db.ordered_map::<String, u64>("words")?);
/// assert_eq!(ages.guarantee().durability, Durability::Strict);       // durable on return
/// assert_eq!(words.guarantee().durability, Durability::Buffered);    // in memory: with the next sync
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::pool::Durability;

/// Which crashes a change survives, and from when on. It prints as a sentence.
///
/// ```
/// use durix::{Guarantee, Level, Reach};
///
/// let guarantee = Guarantee::at(Level::Immediate);                   // of an ordinary file
/// assert_eq!(guarantee.reach, Reach::PowerFailure);
/// println!("{guarantee}");
/// ```
#[doc(inline)]
pub use durix_pmem::pool::Guarantee;

/// Which crashes the contents of a file survive.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::{Guarantee, Level, Reach};
///
/// assert_eq!(Guarantee::at(Level::Process).reach, Reach::ProcessDeath);
/// assert_eq!(db.guarantee().reach, Reach::Nothing);                  // this one lies in memory only
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::pool::Reach;

/// How durable a change in an ordinary file is when its call returns.
///
/// ```
/// use std::time::Duration;
///
/// use durix::{Db, Level};
///
/// let level = Level::Interval(Duration::from_millis(64));
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("app.durix");
/// let db = Db::builder().durability(level).open_or_create(&path)?;
/// assert_eq!("interval=64ms".parse(), Ok(level));                    // as the command reads it
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::Level;

/// What an index stands on: real hardware, or a simulated one in tests.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// use durix::{Map, Medium, Result};
///
/// // A function for maps on any medium: on real hardware, and under the crash simulator.
/// fn visit<M: Medium>(visits: &Map<String, u64, M>, name: &str) -> Result<Option<u64>> {
///     visits.update_with(name, |visits| Some(visits.unwrap_or(0) + 1))
/// }
///
/// assert_eq!(visit(&db.map("visits")?, "ada")?, Some(1));
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::Medium;

/// The medium of real machines.
///
/// ```
/// use durix::{Hardware, Medium};
///
/// println!("{}", Hardware::PAGE_CACHE.describe());
/// match Hardware::for_pmem() {
///     Some(hardware) => println!("on persistent memory: {}", hardware.describe()),
///     None => println!("this processor cannot write back to persistent memory"),
/// }
/// ```
#[doc(inline)]
pub use durix_pmem::Hardware;

/// Options of the file below a database.
///
/// ```
/// use durix::{Db, PoolOptions};
///
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("app.durix");
/// // Most programs need `Db::builder()` only.
/// let options = PoolOptions::new().initial_size(1 << 20).max_size(1 << 30);
/// let db = Db::builder().pool_options(options).open_or_create(&path)?;
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::PoolOptions;

/// The file below a database, with its indices.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let stats = db.pool().stats()?;
/// println!("{} of {} bytes are free", stats.space.free, stats.space.total);
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::Pool;

/// A thread's ticket to a pool, for operations on indices over bytes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let ages = db.open_index("ages", Some("pset"))?;
/// let mut session = db.pool().session()?;              // one for each thread
/// ages.insert(&session.enter()?, b"ada", b"36")?;
/// db.pool().settle(&mut session)?;
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::Session;

/// An operation: the scope in which a thread reads and changes indices over bytes.
///
/// ```
/// # let heap = durix_pmem::backing::HeapBacking::new(64 << 20);
/// # let db = durix::Db::over(durix::PoolOptions::new().create_on(heap, durix::Hardware::PAGE_CACHE)?);
/// let (ages, years) = (db.open_index("ages", Some("pset"))?, db.open_index("years", Some("pset"))?);
/// let mut session = db.pool().session()?;
/// let op = session.enter()?;                           // keep it short: checkpoints wait for its end
/// ages.insert(&op, b"ada", b"36")?;
/// years.insert(&op, b"ada", b"1815")?;
/// drop(op);
/// db.pool().settle(&mut session)?;
/// # Ok::<(), durix::Error>(())
/// ```
#[doc(inline)]
pub use durix_pmem::Op;
