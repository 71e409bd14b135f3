//! How a bench was called: which tables are wanted, and whether it only has to show that it runs.

/// The wishes in a bench's command line, as far as they concern what is printed behind criterion's own lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Everything once and fast: `--test`, `--quick`, `cargo test`, or `DURIX_BENCH_QUICK=1`.
    pub quick: bool,
    /// Only criterion is asked for something: a list, a profile, a stored baseline.
    criterion_only: bool,
    filters: Vec<String>,
}

/// Options of criterion that are followed by a value.
const WITH_VALUE: [&str; 18] = [
    "-b",
    "-c",
    "--baseline",
    "--baseline-lenient",
    "--color",
    "--colour",
    "--confidence-level",
    "--format",
    "--load-baseline",
    "--measurement-time",
    "--noise-threshold",
    "--nresamples",
    "--output-format",
    "--plotting-backend",
    "--profile-time",
    "--sample-size",
    "--save-baseline",
    "--significance-level",
];

impl Run {
    /// This process's.
    pub fn this() -> Run {
        let quick = std::env::var_os("DURIX_BENCH_QUICK").is_some_and(|v| v != "0" && !v.is_empty());
        Run::parse(std::env::args().skip(1), quick)
    }

    fn parse(args: impl Iterator<Item = String>, mut quick: bool) -> Run {
        let mut args = args.peekable();
        let (mut filters, mut criterion_only, mut bench) = (Vec::new(), false, false);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--bench" => bench = true,
                "--test" | "--quick" => quick = true,
                "--list" => criterion_only = true,
                "--warm-up-time" => drop(args.next()),
                option if WITH_VALUE.contains(&option) => {
                    criterion_only |= matches!(option, "--load-baseline" | "--profile-time");
                    args.next();
                }
                option if option.starts_with('-') => {
                    criterion_only |= option.starts_with("--load-baseline=") || option.starts_with("--profile-time=");
                }
                filter => filters.push(filter.to_owned()),
            }
        }
        Run { quick: quick || !bench, criterion_only, filters }
    }

    /// What was asked for by name.
    pub fn filters(&self) -> &[String] {
        &self.filters
    }

    /// Whether the table that goes with the group `name` is wanted: without filters, or if one is part of the name or goes
    /// on from it.
    pub fn wants(&self, name: &str) -> bool {
        let matches = |filter: &String| name.contains(filter.as_str()) || filter.contains(name);
        !self.criterion_only && (self.filters.is_empty() || self.filters.iter().any(matches))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(args: &str) -> Run {
        Run::parse(args.split_whitespace().map(String::from), false)
    }

    #[test]
    fn a_table_is_printed_where_its_group_is_run() {
        for args in
            ["--bench", "cso_append --bench", "cso --bench", "cso_append/x --bench", "--save-baseline x --bench"]
        {
            assert!(run(args).wants("cso_append"), "{args}");
        }
        for args in ["pset --bench", "--list --bench", "--profile-time 5 --bench", "--load-baseline=x --bench"] {
            assert!(!run(args).wants("cso_append"), "{args}");
        }
    }

    #[test]
    fn quick_is_for_tests_and_for_those_who_ask() {
        assert!(!run("--bench").quick);
        for args in ["", "--bench --test", "--bench --quick"] {
            assert!(run(args).quick, "{args}");
        }
        assert!(Run::parse(["--bench".to_owned()].into_iter(), true).quick);
    }
}
