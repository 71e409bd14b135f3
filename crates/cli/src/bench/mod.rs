//! x
use crate::args::BenchArgs;
use crate::failure::{Code, Failure};
pub fn run(_: &BenchArgs) -> Result<Code, Failure> {
    todo!()
}
