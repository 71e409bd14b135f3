//! A durable object does not outlive its operation.
use durix_pmem::{Durable, Off, Session, Word};

fn keep(session: &mut Session) -> Durable<'static, Word> {
    let op = session.enter().unwrap();
    op.settle(op.fresh(Off::<Word>::new(64)).write_back(&op))
}

fn main() {}
