//! An operation stays on its thread.
use durix_pmem::Op;

fn send<T: Send>(_: T) {}

fn give_away(op: Op<'_>) {
    send(op);
}

fn main() {}
