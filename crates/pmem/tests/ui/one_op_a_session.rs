//! A session has one operation at a time.
use durix_pmem::Session;

fn two(session: &mut Session) {
    let first = session.enter();
    let second = session.enter();
    drop(first);
    drop(second);
}

fn main() {}
