//! Quiescence: a moment without any operation in flight.

use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::gate;
use crate::mapping::{Mapping, Seen};
use crate::medium::{GIVES_WAY, Medium};
use crate::membarrier;
use crate::session::Session;

impl<M: Medium> Mapping<M> {
    /// Runs `f` at a moment without any operation in flight, and lets them enter again afterwards. Open sessions,
    /// [`Pin`](crate::Pin)s and forgotten iterators do not hold it up, only open [`Op`](crate::Op)s do. Taking the
    /// caller's session by `&mut` makes sure that the caller itself holds none.
    ///
    /// # Errors
    /// [`Error::Busy`] if operations were still open after `patience`; [`Error::ForeignSession`], [`Error::Forked`],
    /// [`Error::Shut`].
    pub fn quiesce<R>(
        &self,
        session: &mut Session<M>,
        patience: Duration,
        f: impl FnOnce(&mut Session<M>) -> R,
    ) -> Result<R> {
        let m = self.medium();
        let _turn = self.quiescing().lock(m);
        if !session.mapping().is_same(self) {
            // It has a slot here that is another's.
            return Err(Error::ForeignSession);
        }
        let own = session.slot();
        let others = || self.taken().filter(|slot| *slot != own);
        let closed = gate::close(
            &Seen(m, self.gate()),
            || fence(Ordering::SeqCst),
            || self.is_any_awake(own),
            || membarrier::heavy(self.asymmetric()),
        );
        match closed {
            Ok(()) => {}
            Err(gate::FORKED) => return Err(Error::Forked),
            Err(_) => return Err(self.shut_error()),
        }
        let _reopen = Reopen(self);
        let start = Instant::now();
        let mut turn = 0;
        for slot in others() {
            while gate::is_inside(&Seen(m, &self.slot(slot).active)) {
                if turn > GIVES_WAY && start.elapsed() > patience {
                    let operations =
                        others().filter(|slot| self.slot(*slot).active.load(Ordering::Relaxed) & 1 == 1).count();
                    return Err(Error::Busy { operations, waited: start.elapsed() });
                }
                m.spin(turn);
                turn = turn.saturating_add(1);
            }
        }
        self.leave_alone(Some(own));
        Ok(f(session))
    }
}

/// Opens the gate again, also when the closure panics.
struct Reopen<'a, M: Medium>(&'a Mapping<M>);

impl<M: Medium> Drop for Reopen<'_, M> {
    fn drop(&mut self) {
        self.0.leave_alone(None);
        gate::reopen(&Seen(self.0.medium(), self.0.gate()));
    }
}
