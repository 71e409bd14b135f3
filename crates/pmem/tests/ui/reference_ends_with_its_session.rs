//! References into the mapping do not outlive the session's borrow.
use durix_pmem::{Off, Session, Word};

fn keep(session: &mut Session) -> &'static Word {
    session.enter().unwrap().at(Off::new(64))
}

fn main() {}
