//! The replay string: at most 200 characters that name a case, its crashes, and the lines that deviate.
//!
//! `dx1<case>[!<death>][~<call>.<fault>]:<crash>[:<crash in recovery>…]`, where a case is `-` (the operations given),
//! `k<n>.<kept>,<n>.<kept>` (some of them), `g<seed>.<n>,<moves>` (generated, and the moves of the shrinker),
//! `n<number>.<len>` (of all sequences) or `t<operations>[.<thread><turns>…]` (threads); a death of the process and a crash
//! are the position of an event; a crash goes on with,
//! for each line that does not hold everything `/<line>=<stores of each word that reached memory>`, or `*` for "explore
//! this crash point".

use std::fmt;
use std::str::FromStr;

use crate::model::window::{Positions, WORDS};

/// Longest replay string; what does not fit is explored again instead of being spelled out.
const LONGEST: usize = 200;

const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Case {
    #[default]
    Given,
    Generated {
        seed: u64,
        /// Moves of the shrinker: true to simplify, false to take a simplification back.
        moves: Vec<bool>,
    },
    /// Of the operations given, and of those after the recovery, those that are kept.
    Kept {
        ops: Vec<bool>,
        after: Vec<bool>,
    },
    Sequence {
        number: u64,
        len: usize,
    },
    /// Of a concurrent program, operations by their numbers, in a schedule.
    Threads {
        /// Bits of the operations that ran.
        ops: u64,
        /// Threads in turn, and for how many turns.
        schedule: Vec<(usize, u32)>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    /// The crash is just before this event of the trace.
    pub(crate) event: usize,
    /// Lines of the arena that do not hold everything; `None` to explore them all.
    pub(crate) lines: Option<Vec<(u32, Positions)>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replay {
    pub(crate) case: Case,
    /// The process dies just before this event, and the crashes come in its successor.
    pub(crate) death: Option<usize>,
    /// The call of the file system that fails, counted from 1, and which of its faults it meets.
    pub(crate) fault: Option<(u64, usize)>,
    /// Without any, everything is explored.
    pub(crate) crashes: Vec<Crash>,
}

impl Replay {
    /// The string, shortened where it must be.
    pub(crate) fn encode(&self) -> String {
        let full = self.to_string();
        if full.len() <= LONGEST {
            return full;
        }
        let mut short = self.clone();
        short.crashes.truncate(1);
        if let Some(first) = short.crashes.first_mut() {
            first.lines = None;
        }
        let text = short.to_string();
        if text.len() <= LONGEST {
            return text;
        }
        // A case that takes too many words is looked for again as a whole.
        let case = match short.case {
            Case::Threads { ops, .. } => Case::Threads { ops, schedule: Vec::new() },
            _ => Case::Given,
        };
        Replay { case, ..Replay::default() }.to_string()
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.case {
            Case::Given => f.write_str("dx1-")?,
            Case::Generated { seed, moves } => write!(f, "dx1g{seed:x}.{},{}", moves.len(), bits(moves))?,
            Case::Kept { ops, after } => {
                write!(f, "dx1k{}.{},{}.{}", ops.len(), bits(ops), after.len(), bits(after))?;
            }
            Case::Sequence { number, len } => write!(f, "dx1n{number}.{len}")?,
            Case::Threads { ops, schedule } => {
                write!(f, "dx1t{ops:x}")?;
                schedule.iter().try_for_each(|(thread, turns)| write!(f, ".{thread}{turns:x}"))?;
            }
        }
        if let Some(event) = self.death {
            write!(f, "!{event}")?;
        }
        if let Some((call, fault)) = self.fault {
            write!(f, "~{call}.{fault}")?;
        }
        for crash in &self.crashes {
            write!(f, ":{}", crash.event)?;
            match &crash.lines {
                None => f.write_str("*")?,
                Some(lines) => {
                    lines.iter().try_for_each(|(line, at)| write!(f, "/{line:x}={}", positions(at)))?;
                }
            }
        }
        Ok(())
    }
}

fn positions(at: &Positions) -> String {
    if at.iter().all(|p| *p < 36) {
        return at.iter().map(|p| DIGITS[*p as usize] as char).collect();
    }
    at.map(|p| p.to_string()).join(".")
}

fn bits(moves: &[bool]) -> String {
    let digit = |chunk: &[bool]| chunk.iter().enumerate().map(|(i, b)| usize::from(*b) << i).sum::<usize>();
    moves.chunks(5).map(|chunk| DIGITS[digit(chunk)] as char).collect()
}

impl FromStr for Replay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a replay string: {text:?} (copy it whole from the failure, starting with dx1)");
        let mut parts = text.trim().strip_prefix("dx1").ok_or_else(wrong)?.split(':');
        let first = parts.next().unwrap_or_default();
        let (first, fault) = first.split_once('~').map_or((first, None), |(first, fault)| (first, Some(fault)));
        let (case, death) = first.split_once('!').map_or((first, None), |(case, death)| (case, Some(death)));
        let fault = fault.map(|text| parse_fault(text).ok_or_else(wrong)).transpose()?;
        let case = parse_case(case).ok_or_else(wrong)?;
        let death = death.map(str::parse).transpose().map_err(|_| wrong())?;
        let crashes = parts.map(parse_crash).collect::<Option<_>>().ok_or_else(wrong)?;
        Ok(Replay { case, death, fault, crashes })
    }
}

fn parse_case(text: &str) -> Option<Case> {
    if text == "-" {
        return Some(Case::Given);
    }
    if let Some(text) = text.strip_prefix('n') {
        let (number, len) = text.split_once('.')?;
        return Some(Case::Sequence { number: number.parse().ok()?, len: len.parse().ok()? });
    }
    if let Some(text) = text.strip_prefix('t') {
        let mut parts = text.split('.');
        let ops = u64::from_str_radix(parts.next()?, 16).ok()?;
        let turn = |part: &str| {
            let (thread, turns) = part.split_at_checked(1)?;
            Some((thread.parse().ok()?, u32::from_str_radix(turns, 16).ok()?))
        };
        return Some(Case::Threads { ops, schedule: parts.map(turn).collect::<Option<_>>()? });
    }
    if let Some(text) = text.strip_prefix('k') {
        let (ops, after) = text.split_once(',')?;
        let bits = |text: &str| {
            let (len, digits) = text.split_once('.')?;
            parse_bits(len, digits)
        };
        return Some(Case::Kept { ops: bits(ops)?, after: bits(after)? });
    }
    let (seed, moves) = text.strip_prefix('g')?.split_once('.')?;
    let (len, digits) = moves.split_once(',')?;
    Some(Case::Generated { seed: u64::from_str_radix(seed, 16).ok()?, moves: parse_bits(len, digits)? })
}

/// No call meets more than three faults.
fn parse_fault(text: &str) -> Option<(u64, usize)> {
    let (call, fault) = text.split_once('.')?;
    Some((call.parse().ok()?, fault.parse().ok().filter(|fault| *fault < 3)?))
}

fn parse_bits(len: &str, digits: &str) -> Option<Vec<bool>> {
    let len: usize = len.parse().ok()?;
    let mut bits = Vec::new();
    for c in digits.chars() {
        let digit = c.to_digit(36)?;
        bits.extend((0..5).map(|i| digit >> i & 1 == 1));
    }
    bits.get(..len)?;
    bits.truncate(len);
    Some(bits)
}

fn parse_crash(text: &str) -> Option<Crash> {
    if let Some(event) = text.strip_suffix('*') {
        return Some(Crash { event: event.parse().ok()?, lines: None });
    }
    let mut parts = text.split('/');
    let event = parts.next()?.parse().ok()?;
    let line = |part: &str| {
        let (line, at) = part.split_once('=')?;
        Some((u32::from_str_radix(line, 16).ok()?, parse_positions(at)?))
    };
    Some(Crash { event, lines: Some(parts.map(line).collect::<Option<_>>()?) })
}

fn parse_positions(text: &str) -> Option<Positions> {
    let all: Option<Vec<u16>> = if text.contains('.') {
        text.split('.').map(|p| p.parse().ok()).collect()
    } else {
        text.chars().map(|c| c.to_digit(36).map(|d| d as u16)).collect()
    };
    <[u16; WORDS]>::try_from(all?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replay_strings_come_back() {
        let lines = vec![(2, [1, 0, 35, 0, 0, 0, 0, 0]), (0xabc, [0, 0, 0, 400, 0, 0, 0, 7])];
        let crashes = vec![Crash { event: 17, lines: Some(lines) }, Crash { event: 3, lines: None }];
        let moves = (0..17).map(|i| i % 3 == 0).collect();
        let threads = Case::Threads { ops: 0x2f, schedule: vec![(0, 3), (1, 17), (0, 300)] };
        let generated = Case::Generated { seed: u64::MAX, moves };
        let kept = Case::Kept { ops: vec![true, false, true], after: vec![] };
        for case in [kept, Case::Given, generated, Case::Sequence { number: 624, len: 4 }, threads] {
            let replay = Replay { case, death: Some(44), fault: Some((12, 2)), crashes: crashes.clone() };
            assert_eq!(replay.to_string().parse(), Ok(replay));
        }
    }

    #[test]
    fn what_is_too_long_is_explored_again() {
        let lines = (0..40).map(|line| (line, [1; 8])).collect();
        let moves = vec![true; 400];
        let replay = Replay {
            case: Case::Generated { seed: 1, moves },
            death: None,
            fault: None,
            crashes: vec![Crash { event: 9, lines: Some(lines) }],
        };
        let text = replay.encode();
        assert!(text.len() <= LONGEST, "{text}");
        let short: Replay = text.parse().unwrap();
        assert_eq!(short.crashes, [Crash { event: 9, lines: None }]);
        assert_eq!(short.case, replay.case);
    }

    #[test]
    fn no_string_is_longer_than_it_may_be() {
        let schedule = (0..100).map(|turn| (turn % 3, 100)).collect();
        let threads = Case::Threads { ops: u64::MAX, schedule };
        let kept = Case::Kept { ops: vec![true; 2000], after: vec![false; 900] };
        let generated = Case::Generated { seed: u64::MAX, moves: vec![true; 600] };
        for case in [threads, kept, generated] {
            let crashes = vec![Crash { event: 1 << 20, lines: None }; 3];
            let replay = Replay { case, death: Some(1 << 20), fault: Some((u64::MAX, 2)), crashes };
            let text = replay.encode();
            assert!(text.len() <= LONGEST, "{text}");
            assert!(text.parse::<Replay>().is_ok(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "dx1",
            "dx2-:1",
            "dx1-:x",
            "dx1-:1/2",
            "dx1-:1/2=000",
            "dx1g12",
            "dx1g1.9,z",
            "dx1n3",
            "dx1t1.",
            "dx1t1.x3",
            "dx1-~3",
            "dx1-~3.9",
        ] {
            let error = text.parse::<Replay>().unwrap_err();
            assert!(error.starts_with("not a replay string"), "{text}: {error}");
        }
    }
}
