//! A doubly linked list in persistent memory that survives crashes: each change is a transaction.

use durix_pmem::{Off, PoolOptions, Word, persistent};
use durix_rewind::{Error, Options, TransactionManager, Tx, field};

persistent! {
    struct Node: align(64) { value: Word, prior: Word<Off<Node>>, next: Word<Off<Node>>, rest: [Word; 5] }
}

/// Where the list begins and ends: two words that the log keeps.
#[derive(Clone, Copy)]
struct List {
    head: Off<Word<Off<Node>>>,
    tail: Off<Word<Off<Node>>>,
}

impl List {
    fn push(self, tx: &mut Tx<'_, durix_pmem::Hardware>, value: u64) -> Result<Off<Node>, Error> {
        let last = tx.get(self.tail)?;
        let node = tx.alloc(&[value, last.get(), 0, 0, 0, 0, 0, 0])?.cast::<Node>();
        tx.set(if last.is_null() { self.head } else { field!(last, Node, next) }, node)?;
        tx.set(self.tail, node)?;
        Ok(node)
    }

    fn remove(self, tx: &mut Tx<'_, durix_pmem::Hardware>, node: Off<Node>) -> Result<(), Error> {
        let (prior, next) = (tx.get(field!(node, Node, prior))?, tx.get(field!(node, Node, next))?);
        tx.set(if prior.is_null() { self.head } else { field!(prior, Node, next) }, next)?;
        tx.set(if next.is_null() { self.tail } else { field!(next, Node, prior) }, prior)?;
        tx.free(node.cast())
    }

    fn values(self, tx: &mut Tx<'_, durix_pmem::Hardware>) -> Result<Vec<u64>, Error> {
        let (mut values, mut at) = (Vec::new(), tx.get(self.head)?);
        while !at.is_null() {
            values.push(tx.get(field!(at, Node, value))?);
            at = tx.get(field!(at, Node, next))?;
        }
        Ok(values)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("durix-linked-list-{}.pool", std::process::id()));
    let pool = PoolOptions::new().create(&path)?;
    let tm = TransactionManager::open(&pool, "log", &Options::default())?;
    let list = List { head: tm.cell(0).cast(), tail: tm.cell(1).cast() };
    let mut session = pool.session()?;

    // Three nodes, all or none.
    let nodes =
        tm.transaction(&mut session, |tx| (1..=3).map(|value| list.push(tx, value)).collect::<Result<Vec<_>, _>>())?;
    // The middle one goes, and the transaction is rolled back: it stays.
    let refused: Result<(), Error> = tm.transaction(&mut session, |tx| {
        list.remove(tx, nodes[1])?;
        Err(Error::RolledBack)
    });
    println!("{}", refused.unwrap_err());
    assert_eq!(tm.transaction(&mut session, |tx| list.values(tx))?, [1, 2, 3]);
    tm.transaction(&mut session, |tx| list.remove(tx, nodes[1]))?;
    println!("{:?}", tm.transaction(&mut session, |tx| list.values(tx))?);
    assert_eq!(tm.transaction(&mut session, |tx| list.values(tx))?, [1, 3]);
    tm.checkpoint(&mut session)?;

    drop((tm, session));
    pool.close()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
