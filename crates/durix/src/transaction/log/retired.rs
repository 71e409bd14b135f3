//! Retirements that are not durable yet, and the keys that wait for them.
//!
//! A transaction stores that its record needs nothing any more, and does not wait until that is durable. As a rule the next
//! record of the same lane takes the record's place, so its fence settles the retirement, too. Until then a crash would make the
//! transaction's changes again. So a thread that changes one of its keys first makes the retirement durable: here the keys
//! are known, by hash.
//!
//! A place of the table holds a lane and the number of a record. Places are filled between a record's retirement and the
//! release of its locks, and looked at by those who have locked a key:
//!
//! - Either the release comes first; then the place is seen.
//! - Or the lock is not given.
//!
//! Two keys may share a place. A commit that fills a place settles first what stands there. So a place may stand for more keys than
//! were changed, never for fewer.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use durix_pmem::{Checksum, Medium, Off, Op, Owner, Rmw};

use super::layout::LaneHeader;

/// Places of the table.
const PLACES: usize = 1 << 10;
/// Lanes whose retirements may wait; those of others are made durable at once.
pub(crate) const LANES: usize = 1 << 6;

/// Lanes that are looked through before the keys are: threads that commit at the same time.
const FEW: usize = 4;

/// What is retired, and not durably so.
pub(crate) struct Retirements {
    /// By hash of owner and key: lane and number of a record; zero for none.
    places: Box<[AtomicU64]>,
    lanes: Box<[LaneState]>,
    /// Lanes from the first on that have retired a record.
    used: AtomicU64,
}

/// What is known of the retirements of a lane. Its line is its own: each commit stores to it.
#[derive(Default)]
#[repr(align(128))]
struct LaneState {
    /// Where the lane begins.
    offset: AtomicU64,
    /// The last record that is retired.
    retired: AtomicU64,
    /// Up to which record all is durably retired, or overwritten.
    settled: AtomicU64,
}

/// A record, as a place of the table holds it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Waiting(u64);

impl Waiting {
    /// Numbers lie above the lane, and begin with 1: so none is zero.
    fn new(lane: usize, number: u64) -> Self {
        Waiting((number * LANES as u64) | lane as u64)
    }

    fn lane(self) -> usize {
        self.0 as usize % LANES
    }

    fn number(self) -> u64 {
        self.0 / LANES as u64
    }
}

impl Retirements {
    pub(crate) fn new() -> Self {
        let places = (0..PLACES).map(|_| AtomicU64::new(0)).collect();
        Retirements { places, lanes: (0..LANES).map(|_| LaneState::default()).collect(), used: AtomicU64::new(0) }
    }

    fn place(&self, owner: Owner, key: &[u8]) -> &AtomicU64 {
        &self.places[Checksum::at(owner.0.into()).bytes(key).finish() as usize % PLACES]
    }

    fn is_settled<M: Medium>(&self, m: M, waiting: Waiting) -> bool {
        waiting.0 == 0 || m.shared_load(&self.lanes[waiting.lane()].settled, Acquire) >= waiting.number()
    }

    /// Before keys change that are locked: makes durable that no record will change them again. `own`: the lane whose next
    /// record is durable before the change, if there is one. As a rule no fence, else one.
    #[inline]
    pub(crate) fn settle_keys<'k, M: Medium>(
        &self,
        op: &Op<'_, M>,
        owner: Owner,
        keys: impl IntoIterator<Item = &'k [u8]>,
        own: Option<usize>,
    ) {
        if !self.others_wait(op.medium(), own) {
            return;
        }
        for key in keys {
            let waiting = Waiting(op.medium().shared_load(self.place(owner, key), Acquire));
            if !self.is_settled(op.medium(), waiting) && own != Some(waiting.lane()) {
                self.settle(op, waiting.lane());
            }
        }
    }

    /// Whether retirements of lanes besides `own` may wait. A lane whose last transaction had a key that is locked now had retired it, and says so,
    /// before the key was given back.
    #[inline]
    fn others_wait<M: Medium>(&self, m: M, own: Option<usize>) -> bool {
        let used = m.shared_load(&self.used, Acquire) as usize;
        used > FEW || (0..used).any(|lane| own != Some(lane) && self.waits(m, lane))
    }

    /// Makes the retirements of all lanes durable.
    pub(crate) fn settle_all<M: Medium>(&self, op: &Op<'_, M>) {
        (0..LANES).filter(|lane| self.waits(op.medium(), *lane)).for_each(|lane| self.settle(op, lane));
    }

    /// Whether a retirement is not durable.
    pub(crate) fn any<M: Medium>(&self, m: M) -> bool {
        (0..LANES).any(|lane| self.waits(m, lane))
    }

    fn waits<M: Medium>(&self, m: M, lane: usize) -> bool {
        let state = &self.lanes[lane];
        m.shared_load(&state.settled, Acquire) < m.shared_load(&state.retired, Acquire)
    }

    /// Makes the retirement of a lane's last record durable: one fence.
    #[cold]
    fn settle<M: Medium>(&self, op: &Op<'_, M>, lane: usize) {
        let (m, state) = (op.medium(), &self.lanes[lane]);
        let number = m.shared_load(&state.retired, Acquire);
        let header = op.at(Off::<LaneHeader>::new(m.shared_load(&state.offset, Acquire)));
        op.write_back(header);
        // PERSIST TX-R: flush+fence
        op.fence();
        // Where the lane has gone on since, this may be less than what stood there: that only costs another fence.
        m.shared_store(&state.settled, number, Release);
    }

    /// All records of a lane before one with this number are overwritten, durably.
    pub(super) fn overwritten<M: Medium>(&self, m: M, lane: usize, number: u64) {
        if let Some(state) = self.lanes.get(lane) {
            m.shared_store(&state.settled, number - 1, Release);
        }
    }

    /// A record is retired, and not durably so; its keys are still locked.
    pub(super) fn retired<'k, M: Medium>(
        &self,
        op: &Op<'_, M>,
        (lane, offset, number): (usize, u64, u64),
        keys: impl Iterator<Item = (Owner, &'k [u8])>,
    ) {
        let (m, state) = (op.medium(), &self.lanes[lane]);
        m.shared_store(&state.offset, offset, Release);
        m.shared_store(&state.retired, number, Release);
        if m.shared_load(&self.used, Acquire) <= lane as u64 {
            m.shared_rmw(&self.used, Rmw::Max, lane as u64 + 1);
        }
        let own = Waiting::new(lane, number);
        for (owner, key) in keys {
            let place = self.place(owner, key);
            let mut there = Waiting(m.shared_load(place, Acquire));
            while there != own {
                // The lane's own records before are overwritten.
                if !self.is_settled(m, there) && there.lane() != lane {
                    self.settle(op, there.lane());
                }
                match m.shared_compare_exchange(place, there.0, own.0) {
                    Ok(_) => break,
                    Err(now) => there = Waiting(now),
                }
            }
        }
    }

    /// Forgets everything: all is settled, and the lanes may come in another order next time.
    pub(crate) fn clear<M: Medium>(&self, m: M) {
        let lanes = self.lanes.iter().flat_map(|lane| [&lane.retired, &lane.settled]);
        self.places.iter().chain(lanes).for_each(|word| m.shared_store(word, 0, Release));
    }
}

#[cfg(test)]
mod tests {
    use durix_pmem::backing::HeapBacking;
    use durix_pmem::{Hardware, Op, Owner, PoolOptions};

    use super::super::record;
    use super::super::room::Need;
    use crate::transaction::log::LaneGuard;
    use crate::transaction::shared::Transactions;
    use crate::{Db, Map};

    /// A lane with the record of a transaction that changes a key.
    fn lane_of(
        transactions: &Transactions<Hardware>,
        op: &Op<'_, Hardware>,
        owner: Owner,
        key: u64,
    ) -> LaneGuard<Hardware> {
        let mut draft = Vec::new();
        record::begin(&mut draft);
        record::push(&mut draft, owner, &key.to_be_bytes(), Some(&[1; 8]));
        let log = transactions.log().unwrap();
        let mut lane = log.take(op, record::payload(&draft), &Need::default()).unwrap();
        lane.write(op, &transactions.retirements, 0, &mut draft).unwrap();
        lane
    }

    /// Two keys share a place, and are changed at the same time: whoever retires last settles what stands there, or those who change the
    /// first key would not know of its record.
    #[test]
    fn a_place_stands_for_all_of_its_keys() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let map: Map<u64, u64> = db.map_of_kind("map", "hash").unwrap();
        let transactions = &db.shared.transactions;
        let (m, retirements, owner) = (transactions.medium(), &transactions.retirements, map.index().root().owner());
        let place = |key: u64| std::ptr::from_ref(retirements.place(owner, &key.to_be_bytes()));
        let other = (2..).find(|key| place(*key) == place(1)).unwrap();
        let mut session = db.pool().session().unwrap();
        let op = session.enter().unwrap();
        let mut lanes = [1, other].map(|key: u64| (lane_of(transactions, &op, owner, key), key));
        for ((lane, key), waits) in lanes.iter_mut().zip([[true, false], [false, true]]) {
            lane.retire(&op, retirements, [(owner, &key.to_be_bytes()[..])].into_iter());
            assert_eq!([0, 1].map(|lane| retirements.waits(m, lane)), waits);
        }
    }

    /// More lanes wait than are looked through before the keys are. As those before it are settled, each is found by its key all the same.
    #[test]
    fn a_key_of_any_lane_is_settled_before_it_changes() {
        let pool = PoolOptions::new().create_on(HeapBacking::new(64 << 20), Hardware::PAGE_CACHE).unwrap();
        let db = Db::builder().no_background_threads().over(pool).unwrap();
        let map: Map<u64, u64> = db.map_of_kind("map", "hash").unwrap();
        let transactions = &db.shared.transactions;
        let (m, retirements, owner) = (transactions.medium(), &transactions.retirements, map.index().root().owner());
        let mut session = db.pool().session().unwrap();
        let op = session.enter().unwrap();
        let lanes = super::FEW as u64 + 2;
        // All lanes are taken before the first one is given back.
        let taken: Vec<_> = (0..lanes).map(|key| lane_of(transactions, &op, owner, key)).collect();
        for (key, mut lane) in (0..lanes).zip(taken) {
            lane.retire(&op, retirements, [(owner, &key.to_be_bytes()[..])].into_iter());
        }
        for (lane, key) in (0..lanes).enumerate() {
            assert!(retirements.waits(m, lane), "lane {lane}");
            retirements.settle_keys(&op, owner, [&key.to_be_bytes()[..]], None);
            assert!(!retirements.waits(m, lane), "lane {lane}");
        }
    }
}
