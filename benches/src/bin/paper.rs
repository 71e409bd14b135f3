//! Redraws the figures and tables of the papers.
//!
//! ```text
//! paper list
//! paper <name> [--quick] [--keys N] [--json FILE] [--svg FILE]
//! paper all [--quick] [--out DIR]
//! paper journal-peers [--quick]
//! ```
//!
//! `DURIX_DIR` names the directory to measure in, `/dev/shm` without it. See `docs/measurements/README.md`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Parser;
use durix_bench::paper::output::Output;
use durix_bench::paper::{Error, FIGURES, Figure, all, find, run, svg, terminal};

/// Redraws the figures and tables of the papers: the paper's comparators and ours, interleaved in one run, with the paper's
/// claims beside what was found.
#[derive(Parser)]
#[command(name = "paper", after_help = "DURIX_DIR names the directory to measure in (default /dev/shm).")]
struct Args {
    /// The figure; or `list`: names all figures; or `all`: measures all, and makes a page that shows them
    name: String,
    /// In less than a minute, `all` in less than 15: fewer rounds, smaller regions and sets
    #[arg(long)]
    quick: bool,
    /// Keys of the sets, where the figure has keys
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Writes everything that was measured to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draws the figure
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The folder that `all` writes to: a drawing and data of each figure, and index.html [default: paper-figures]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.name.as_str() {
        "list" => list(&args),
        "all" => all_figures(&args),
        PEERS => peers(&args),
        _ => figure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("paper: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The comparison of commits with other stores: a program of its own, in the workspace that builds them.
const PEERS: &str = "journal-peers";

fn peers(args: &Args) -> Result<(), Error> {
    if args.keys.is_some() || args.json.is_some() || args.svg.is_some() || args.out.is_some() {
        eprintln!("paper: `{PEERS}` takes --quick; other options are ignored");
    }
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/compare/Cargo.toml");
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--release", "--manifest-path", manifest, "-p", "durix-journal-peers", "--"]);
    cargo.args(args.quick.then_some("--quick"));
    let status =
        cargo.status().map_err(|source| Error::File { action: "running cargo for", path: manifest.into(), source })?;
    // It has said what is wrong.
    if status.success() { Ok(()) } else { std::process::exit(status.code().unwrap_or(1)) }
}

/// Prints to standard output; a reader who has seen enough is no error.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn list(args: &Args) -> Result<(), Error> {
    if args.quick || args.keys.is_some() || args.json.is_some() || args.svg.is_some() || args.out.is_some() {
        eprintln!("paper: `list` takes no options; they are ignored");
    }
    for figure in FIGURES {
        print(&format!("{:15} {}\n", figure.name, figure.title));
        if let Some(keys) = figure.keys {
            print(&format!("{:15}   --keys: {keys}\n", ""));
        }
    }
    print(&format!("{PEERS:15} commits beside those of other stores, which it builds first; not part of `all`\n"));
    Ok(())
}

fn all_figures(args: &Args) -> Result<(), Error> {
    if args.keys.is_some() || args.json.is_some() || args.svg.is_some() {
        eprintln!("paper: `all` takes --quick and --out; other options are ignored");
    }
    let out = args.out.clone().unwrap_or_else(|| "paper-figures".into());
    let figures: Vec<&'static Figure> = FIGURES.iter().collect();
    let summary = all::run(&out, &figures, args.quick, &mut |number, figure| {
        eprintln!("{} of {}: {}", number + 1, figures.len(), figure.name);
    })?;
    let all::Summary { measured, failed, hold, lose, took } = summary;
    print(&format!(
        "{measured} figures were measured, {failed} could not be; {hold} goals hold, {lose} do not; {} s\npage: {}\n",
        took.as_secs(),
        out.join(all::PAGE).display()
    ));
    Ok(())
}

fn figure(args: &Args) -> Result<(), Error> {
    let figure = find(&args.name)?;
    let output = |path: &Option<PathBuf>| path.as_deref().map(Output::create).transpose();
    let (json, drawing) = (output(&args.json)?, output(&args.svg)?);
    let report = run(figure, args.quick, args.keys)?;
    print(&terminal::render(&report));
    if let Some(json) = json {
        let text = serde_json::to_string_pretty(&report).expect("a report is made of strings and numbers");
        let path = json.finish(&(text + "\n"))?;
        print(&format!("data: {}\n", path.display()));
    }
    if let (Some(drawing), Some(path)) = (drawing, &args.svg) {
        let path = drawing.finish(&svg::render(&report, &path.display().to_string())?)?;
        print(&format!("drawing: {}\n", path.display()));
    }
    Ok(())
}
