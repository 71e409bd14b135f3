//! A doubly linked list in persistent memory, made transactional by the one-fence engine: cells instead of pointers, a closure instead
//! of a log. A change is all or nothing, and durable when the transaction returns, for one fence.

use durix_pmem::{Hardware, PoolOptions};
use durix_rewind::engine::{Cell, Engine, EngineRecovery, Error, Tx};

/// A node is three cells: value, prior, next. Zero is no node.
type Node = Cell<u64>;

/// The list: its ends, two cells that the engine keeps.
#[derive(Clone, Copy)]
struct List {
    head: Cell<Node>,
    tail: Cell<Node>,
}

fn prior(node: Node) -> Cell<Node> {
    node.field(1)
}

fn next(node: Node) -> Cell<Node> {
    node.field(2)
}

impl List {
    fn push(self, tx: &mut Tx<'_, Hardware>, value: u64) -> Result<Node, Error> {
        let (node, last): (Node, Node) = (tx.alloc(3)?, tx.get(self.tail)?);
        tx.set(node, value)?;
        tx.set(prior(node), last)?;
        tx.set(if last.is_null() { self.head } else { next(last) }, node)?;
        tx.set(self.tail, node)?;
        Ok(node)
    }

    fn remove(self, tx: &mut Tx<'_, Hardware>, node: Node) -> Result<(), Error> {
        let (before, after) = (tx.get(prior(node))?, tx.get(next(node))?);
        tx.set(if before.is_null() { self.head } else { next(before) }, after)?;
        tx.set(if after.is_null() { self.tail } else { prior(after) }, before)?;
        tx.free(node)
    }

    fn values(self, tx: &mut Tx<'_, Hardware>) -> Result<Vec<u64>, Error> {
        let (mut values, mut node) = (Vec::new(), tx.get(self.head)?);
        while !node.is_null() {
            values.push(tx.get(node)?);
            node = tx.get(next(node))?;
        }
        Ok(values)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("durix-transactional-list-{}.pool", std::process::id()));
    let pool = PoolOptions::new().create(&path)?;
    let tm = pool.open_structure::<Engine>("tm", &Default::default())?;
    let list = List { head: tm.root_cell(0)?, tail: tm.root_cell(1)? };
    let mut session = pool.session()?;

    // Three nodes, all or none.
    let nodes: Vec<Node> =
        tm.transaction(&mut session, |tx| (1..=3).map(|value| list.push(tx, value)).collect::<Result<_, Error>>())?;
    // The middle one goes, and the transaction gives up: it stays.
    let refused = tm.transaction(&mut session, |tx| {
        list.remove(tx, nodes[1])?;
        Err::<(), _>(Error::RolledBack)
    });
    println!("{}", refused.unwrap_err());
    assert_eq!(tm.transaction(&mut session, |tx| list.values(tx))?, [1, 2, 3]);
    tm.transaction(&mut session, |tx| list.remove(tx, nodes[1]))?;

    // What a crash would leave in the file: here all stores, none of them trimmed. The recovery redoes the log.
    let copy = path.with_extension("crashed");
    std::fs::copy(&path, &copy)?;
    drop((tm, session));
    pool.close()?;
    let crashed = PoolOptions::new().accept_unclean(true).open_file(&copy)?.recover_with(&[&EngineRecovery])?;
    let tm = crashed.open_structure::<Engine>("tm", &Default::default())?;
    let values = tm.transaction(&mut crashed.session()?, |tx| list.values(tx))?;
    println!("after the crash: {values:?}");
    assert_eq!(values, [1, 3]);
    drop(tm);
    crashed.close()?;
    std::fs::remove_file(&path)?;
    std::fs::remove_file(&copy)?;
    Ok(())
}
