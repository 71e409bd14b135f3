//! Printed values, shortened: a failure is read by people.

/// From so many equal neighbours on they are counted.
const REPEATS: usize = 4;

/// Longest value printed whole, in characters.
const LONGEST: usize = 600;

/// What `{:?}` has printed, with runs of equal elements counted, and cut where it is still too long.
pub(crate) fn brief(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let pieces: Vec<&str> = text.split(", ").collect();
    for run in pieces.chunk_by(|a, b| a == b) {
        if run.len() < REPEATS {
            out.extend(run.iter().map(|piece| (*piece).to_owned()));
        } else {
            out.push(format!("{} ×{}", run[0], run.len()));
        }
    }
    let short = out.join(", ");
    let Some((cut, _)) = short.char_indices().nth(LONGEST) else { return short };
    format!("{} … ({} more characters)", &short[..cut], short[cut..].chars().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_counted() {
        assert_eq!(brief("{}"), "{}");
        assert_eq!(brief("[1, 1, 1]: [2, 2]"), "[1, 1, 1]: [2, 2]");
        assert_eq!(brief(&format!("{:?}", [7; 90])), "[7, 7 ×88, 7]");
        assert_eq!(brief("[0, 5, 5, 5, 5, 1]"), "[0, 5 ×4, 1]");
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        let long: String = (0..400).map(|i| format!("ä{i}")).collect();
        let short = brief(&long);
        assert!(short.starts_with("ä0ä1") && short.ends_with("more characters)") && short.len() < 1300, "{short}");
    }
}
