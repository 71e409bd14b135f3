//! durix
fn main() {}
