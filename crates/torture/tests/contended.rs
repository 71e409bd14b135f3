//! Contended stress of every kind. With `DURIX_DEEP` set, ten minutes each.

use std::time::Duration;

use durix::Hardware;
use durix_torture::{Setting, contend};

#[test]
fn every_kind_stands_contention() {
    let deep = std::env::var_os("DURIX_DEEP").is_some();
    let time =
        if deep { Duration::from_secs(600) } else { Duration::from_millis(1_000) } / Setting::SHAPES.len() as u32;
    let mut wrong = Vec::new();
    for kind in durix::kind::kinds::<Hardware>() {
        for (seed, (threads, keys, full)) in (1..).zip(Setting::SHAPES) {
            match contend(&kind, Setting { threads, keys, full, seed, time }) {
                Ok(report) => println!("{}: {threads} threads, {keys} keys, full {full}: {report:?}", kind.name),
                Err(what) => wrong.push(what),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
