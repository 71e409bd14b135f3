//! How much of a mapping is backed is for its pool to say.
use durix_pmem::Pool;

fn lengthen(pool: &Pool) {
    pool.mapping().set_len(u64::MAX);
}

fn main() {}
