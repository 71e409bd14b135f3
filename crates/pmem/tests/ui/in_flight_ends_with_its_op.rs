//! What is on its way to memory does not outlive its operation.
use durix_pmem::{InFlight, Off, Session, Word};

fn keep(session: &mut Session) -> InFlight<'static, Word> {
    let op = session.enter().unwrap();
    op.fresh(Off::<Word>::new(64)).write_back(&op)
}

fn main() {}
