//! What `-h` and `--help` show: the verbs by groups on one screen, examples, exit codes. The examples are run by a test.

use clap::{Command, CommandFactory, FromArgMatches};

use crate::args::Cli;

/// The verbs by what they are for.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Entries", &["put", "get", "del", "scan", "load", "exec"]),
    ("Look", &["stat", "kinds", "check"]),
    ("Copy and mend", &["copy", "compact", "dump", "restore", "repair", "scrub"]),
    ("Measure and test", &["bench", "torture"]),
    ("This command", &["completions", "man", "help"]),
];

/// Examples of each verb, as a shell reads them; they work one after the other in an empty folder.
const EXAMPLES: [(&str, &[&str]); 19] = [
    ("put", &["durix put --pool app.durix --create ada 1815", "durix put --pool app.durix --if-absent alan 1912"]),
    ("get", &["durix get --pool app.durix ada"]),
    (
        "load",
        &[
            "printf 'grace\\t1906\\nedsger\\t1930\\n' | durix load --pool app.durix --format tsv",
            "printf '{\"key\": \"alonzo\", \"value\": \"1903\"}\\n' | durix load --pool app.durix --format json",
            "durix load --pool files.durix --kind masstree --tree .",
        ],
    ),
    (
        "scan",
        &[
            "durix scan --pool app.durix --prefix a",
            "durix scan --pool app.durix --from b --to h --keys-only",
            "durix scan --pool app.durix --format csv --header > app.csv",
        ],
    ),
    ("exec", &["printf 'put main kurt 1906\\nget main ada\\n' | durix exec --pool app.durix"]),
    ("del", &["durix del --pool app.durix alan"]),
    ("stat", &["durix stat --pool app.durix", "durix stat --pool app.durix --watch 1 --times 2"]),
    ("kinds", &["durix kinds --markdown"]),
    ("check", &["durix check --pool app.durix"]),
    ("scrub", &["durix scrub --pool app.durix"]),
    ("copy", &["durix copy --pool app.durix --to smaller.durix"]),
    ("compact", &["durix compact --pool smaller.durix"]),
    ("dump", &["durix dump --pool app.durix > app.dump"]),
    ("restore", &["durix restore --pool restored.durix app.dump"]),
    ("repair", &["durix repair --pool app.durix --into repaired.durix"]),
    ("torture", &["durix torture pset --rounds 2", "durix torture masstree --rounds 2 --durability immediate"]),
    ("completions", &["durix completions bash > durix.bash"]),
    ("man", &["durix man > durix.1"]),
    (
        "bench",
        &[
            "durix bench --kind masstree --keys 10000 --ops 20000",
            "durix bench --kind hash --workload b --keys 10000 --ops 20000",
            "durix scan --pool app.durix --keys-only > keys && durix bench --keys-from keys",
            "durix bench --kind bplustree --workload tpcc-neworder --keys 1000 --ops 2000 --threads 2",
        ],
    ),
];

const CODES: &str = "Exit codes:
  0  done
  1  the answer is no: a key is not there, a check has findings, a repair or a torture lost something
  2  wrong usage
  3  no such pool or index, or an index of another kind
  4  contents that cannot be used: not a pool, damaged, another version, unclean after a power failure, bad input
  5  the surroundings: open elsewhere, disk or pool full, permissions, input and output
  141  the reader of the output went away before its end";

/// The arguments; ends the process with a message where they are wrong or ask for help.
pub fn parse() -> Cli {
    Cli::from_arg_matches(&command().get_matches()).unwrap_or_else(|error| error.exit())
}

/// The command with its help.
pub fn command() -> Command {
    let mut command = Cli::command();
    let template =
        format!("{{about}}\n\n{{usage-heading}} {{usage}}\n{}\nOptions:\n{{options}}{{after-help}}", verbs(&command));
    for (verb, lines) in EXAMPLES {
        command = command.mut_subcommand(verb, |verb| verb.after_long_help(examples(lines)));
    }
    let first: Vec<&str> = EXAMPLES.iter().take(4).flat_map(|(_, lines)| lines.iter().copied()).collect();
    command
        .help_template(template)
        .after_help("`durix COMMAND --help` has examples; `durix --help` has the exit codes.")
        .after_long_help(format!("{}\n\n{CODES}", examples(&first)))
}

fn examples(lines: &[&str]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| format!("  $ {line}")).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

/// The verbs, a line each.
fn verbs(command: &Command) -> String {
    let line = |verb: &str| {
        let about = command.find_subcommand(verb).and_then(Command::get_about).map(ToString::to_string);
        format!("  {verb:<13}{}\n", about.unwrap_or_else(|| "Print the help of a command".to_owned()))
    };
    let group = |(name, verbs): &(&str, &[&str])| {
        format!("\n{name}:\n{}", verbs.iter().map(|verb| line(verb)).collect::<String>())
    };
    GROUPS.iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_is_in_one_group() {
        let command = Cli::command();
        let mut there: Vec<&str> = command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .map(Command::get_name)
            .chain(["help"])
            .collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        there.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, there);
    }

    #[test]
    fn every_verb_has_examples() {
        let with: Vec<&str> = EXAMPLES.iter().map(|(verb, _)| *verb).chain(["help"]).collect();
        assert!(GROUPS.iter().flat_map(|(_, verbs)| verbs.iter()).all(|verb| with.contains(verb)), "{with:?}");
    }

    #[test]
    fn the_short_help_of_every_verb_fits_one_screen() {
        let mut command = command().term_width(80);
        command.build();
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let help = verb.clone().term_width(80).render_help().to_string();
            assert!(help.lines().count() <= 40, "{} lines: {help}", help.lines().count());
            assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        }
    }

    #[test]
    fn the_short_help_fits_one_screen() {
        let help = command().render_help().to_string();
        assert!(help.lines().count() <= 40, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
}
