//! All figures in one run: a folder with the drawing, the data and the tables of each, and one page that shows them. What does not
//! hold stands at the top of the page.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use super::figure::{Error, Figure};
use super::output::Output;
use super::report::{Claim, Report};
use super::{run_within, svg, terminal};
use crate::machine::Machine;

/// What a quick run of all figures may take.
pub const LIMIT: Duration = Duration::from_secs(15 * 60);
/// What part of a figure's share of the time its rounds may take; the rest is for filling.
const ROUNDS: f64 = 0.35;
/// Rounds of a figure take no less in all.
const LEAST: Duration = Duration::from_secs(1);

/// The page's name in the folder.
pub const PAGE: &str = "index.html";

/// What became of a figure.
struct Outcome {
    figure: &'static Figure,
    took: Duration,
    /// The report, or why there is none.
    report: Result<Report, String>,
}

/// What became of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Figures that were measured.
    pub measured: usize,
    /// Figures that could not be.
    pub failed: usize,
    /// Claims with a goal that hold.
    pub hold: usize,
    /// Claims with a goal that do not.
    pub lose: usize,
    /// All of it.
    pub took: Duration,
}

/// Runs figures one after the other, and writes `<name>.svg`, `<name>.json` and `<name>.txt` of each and [`PAGE`] into a folder, which is
/// made if it is not there. The page is written anew after each figure, so that a run that is broken off leaves one. A figure that cannot
/// be measured does not end the run: the page says why. `told` is called before each figure.
///
/// A quick run is to end within [`LIMIT`]: what is left of the time is shared among the figures that are left, and a figure with less
/// time has fewer rounds, at least five at each point.
///
/// # Errors
/// [`Error::File`] where the folder or a file in it cannot be written.
pub fn run(
    dir: &Path,
    figures: &[&'static Figure],
    quick: bool,
    told: &mut dyn FnMut(usize, &Figure),
) -> Result<Summary, Error> {
    let failed = |source| Error::File { action: "creating", path: dir.display().to_string(), source };
    std::fs::create_dir_all(dir).map_err(failed)?;
    let (start, mut outcomes) = (Instant::now(), Vec::new());
    write(dir, PAGE, &page(&outcomes, figures.len(), quick, start.elapsed()))?;
    for (number, figure) in figures.iter().enumerate() {
        told(number, figure);
        let share = LIMIT.saturating_sub(start.elapsed()) / (figures.len() - number) as u32;
        let rounds = quick.then(|| share.mul_f64(ROUNDS).max(LEAST));
        let began = Instant::now();
        let report = measured(figure, quick, rounds);
        let outcome = Outcome { figure, took: began.elapsed(), report };
        if let Ok(report) = &outcome.report {
            let name = |ending: &str| format!("{}.{ending}", figure.name);
            write(dir, &name("txt"), &terminal::render(report))?;
            let data = serde_json::to_string_pretty(report).expect("a report is made of strings and numbers");
            write(dir, &name("json"), &(data + "\n"))?;
            write(dir, &name("svg"), &svg::render(report, &name("svg"))?)?;
        }
        outcomes.push(outcome);
        write(dir, PAGE, &page(&outcomes, figures.len() - outcomes.len(), quick, start.elapsed()))?;
    }
    Ok(summary(&outcomes, start.elapsed()))
}

/// A figure that panics has found something that is not as it has to be; the others are measured all the same.
fn measured(figure: &'static Figure, quick: bool, rounds: Option<Duration>) -> Result<Report, String> {
    match catch_unwind(AssertUnwindSafe(|| run_within(figure, quick, None, rounds))) {
        Ok(report) => report.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(format!("it panicked: {}", text.unwrap_or_default()))
        }
    }
}

fn write(dir: &Path, name: &str, text: &str) -> Result<(), Error> {
    Output::create(&dir.join(name))?.finish(text).map(drop)
}

fn claims(outcome: &Outcome) -> &[Claim] {
    outcome.report.as_ref().map_or(&[], |report| &report.claims)
}

fn count(claims: &[Claim], holds: bool) -> usize {
    claims.iter().filter(|claim| claim.holds == Some(holds)).count()
}

fn summary(outcomes: &[Outcome], took: Duration) -> Summary {
    let measured = outcomes.iter().filter(|outcome| outcome.report.is_ok()).count();
    let all = |holds| outcomes.iter().map(|outcome| count(claims(outcome), holds)).sum();
    Summary { measured, failed: outcomes.len() - measured, hold: all(true), lose: all(false), took }
}

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #ddd;padding:.25em .6em;text-align:left;vertical-align:top}\
th{background:#f4f4f4}.lose{background:#fde8e4}.hold{background:#e9f6ec}pre{overflow-x:auto;font-size:12px}img{max-width:100%}";

/// The page.
fn page(outcomes: &[Outcome], left: usize, quick: bool, took: Duration) -> String {
    let Summary { measured, failed, hold, lose, .. } = summary(outcomes, took);
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Durix: figures and tables</title>\
         <style>{STYLE}</style></head><body>\n<h1>Durix: figures and tables</h1>\n<p>{}</p>\n",
        escaped(&Machine::this().to_string())
    );
    let kind = if quick { "A quick run: fewer rounds, smaller sets." } else { "A full run." };
    let _ = writeln!(
        text,
        "<p>{kind} {measured} figures were measured, {failed} could not be, {left} are to come; {} s. Of the goals {hold} hold and {lose} \
         do not. All contestants of a figure run in turn in one process; figures are medians of rounds, ratios are taken within rounds. \
         Other stores and maps run in a program of their own: see docs/measurements/README.md.</p>",
        took.as_secs()
    );
    text.push_str("<h2>Where we lose</h2>\n");
    let lost = outcomes.iter().flat_map(|o| claims(o).iter().filter(|c| c.holds == Some(false)).map(move |c| (o, c)));
    let rows: String = lost
        .map(|(outcome, claim)| {
            let name = outcome.figure.name;
            let [what, goal, ours] = [&claim.what, &claim.paper, &claim.ours].map(|cell| escaped(cell));
            format!("<tr class=\"lose\"><td><a href=\"#{name}\">{name}</a></td><td>{what}</td><td>{goal}</td><td>{ours}</td></tr>\n")
        })
        .collect();
    if rows.is_empty() {
        text.push_str("<p>No goal of the figures below is missed.</p>\n");
    } else {
        let _ = writeln!(
            text,
            "<table><tr><th>figure</th><th>what</th><th>the goal</th><th>here</th></tr>\n{rows}</table>"
        );
    }
    text.push_str("<h2>All figures</h2>\n<table><tr><th>figure</th><th>what it shows</th><th>goals held</th><th>missed</th><th>s</th></tr>\n");
    for outcome in outcomes {
        let (Figure { name, title, .. }, claims) = (outcome.figure, claims(outcome));
        let goals = match &outcome.report {
            Ok(_) => format!("<td>{}</td><td>{}</td>", count(claims, true), count(claims, false)),
            Err(_) => "<td colspan=\"2\" class=\"lose\">not measured</td>".into(),
        };
        let (title, took) = (escaped(title), outcome.took.as_secs());
        let _ =
            writeln!(text, "<tr><td><a href=\"#{name}\">{name}</a></td><td>{title}</td>{goals}<td>{took}</td></tr>");
    }
    text.push_str("</table>\n");
    outcomes.iter().for_each(|outcome| text.push_str(&section(outcome)));
    text + "</body></html>\n"
}

fn section(outcome: &Outcome) -> String {
    let Figure { name, title, source, .. } = outcome.figure;
    let mut text = format!("<h2 id=\"{name}\">{name}: {}</h2>\n<p>{}</p>\n", escaped(title), escaped(source));
    let report = match &outcome.report {
        Ok(report) => report,
        Err(why) => return text + &format!("<p class=\"lose\">Not measured: {}</p>\n", escaped(why)),
    };
    let _ = writeln!(text, "<p><img src=\"{name}.svg\" alt=\"{}\"></p>", escaped(title));
    if !report.claims.is_empty() {
        text.push_str("<table><tr><th>what</th><th>the paper, or the goal</th><th>here</th></tr>\n");
        for Claim { what, paper, ours, holds } in &report.claims {
            let class = match holds {
                Some(true) => " class=\"hold\"",
                Some(false) => " class=\"lose\"",
                None => "",
            };
            let [what, paper, ours] = [what, paper, ours].map(|cell| escaped(cell));
            let _ = writeln!(text, "<tr{class}><td>{what}</td><td>{paper}</td><td>{ours}</td></tr>");
        }
        text.push_str("</table>\n");
    }
    report.notes.iter().for_each(|note| _ = writeln!(text, "<p>{}</p>", escaped(note)));
    let tables = escaped(&terminal::render(report));
    let _ = writeln!(
        text,
        "<details><summary>Tables</summary><pre>{tables}</pre></details>\n<p><a href=\"{name}.json\">data</a></p>"
    );
    text
}

/// Text as it may stand in a page.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut to, c| {
        match c {
            '&' => to.push_str("&amp;"),
            '<' => to.push_str("&lt;"),
            '>' => to.push_str("&gt;"),
            '"' => to.push_str("&quot;"),
            other => to.push(other),
        }
        to
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::figure::{Context, Measured};
    use crate::paper::report::{Form, Panel, Point};

    fn lost(context: &Context<'_>) -> Result<Measured, Error> {
        let panel = Panel::new("a < b", &context.places[0], "m", "r").axes("x", vec!["1".into()], "y", Form::Bars);
        let mut panel = panel;
        panel.set("ours", 0, Point::exact(1.0));
        let claim = |what: &str, holds| Claim { what: what.into(), paper: "2".into(), ours: "1".into(), holds };
        let claims = vec![claim("a & b", Some(false)), claim("kept", Some(true)), claim("said", None)];
        Ok(Measured { panels: vec![panel], claims, notes: vec!["a note".into()] })
    }

    fn refused(_: &Context<'_>) -> Result<Measured, Error> {
        Err(Error::NoKeys { name: "refused" })
    }

    fn broken(_: &Context<'_>) -> Result<Measured, Error> {
        panic!("a key was lost")
    }

    const fn figure(name: &'static str, run: fn(&Context<'_>) -> Result<Measured, Error>) -> Figure {
        Figure { name, title: "title", source: "source", keys: None, run }
    }

    static LOST: Figure = figure("lost", lost);
    static REFUSED: Figure = figure("refused", refused);
    static BROKEN: Figure = figure("broken", broken);

    #[test]
    fn the_page_says_what_was_lost_and_what_was_not_measured() {
        let dir = std::env::temp_dir().join(format!("durix-paper-all-{}", std::process::id()));
        let mut order = Vec::new();
        let summary = run(&dir, &[&REFUSED, &BROKEN, &LOST], true, &mut |_, figure| order.push(figure.name)).unwrap();
        assert_eq!((summary.measured, summary.failed, summary.hold, summary.lose), (1, 2, 1, 1));
        assert_eq!(order, ["refused", "broken", "lost"]);
        let page = std::fs::read_to_string(dir.join(PAGE)).unwrap();
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing in {page}"));
        assert!(place("a &amp; b") < place("All figures"), "what is lost stands first");
        place("leave --keys out");
        place("a key was lost");
        place("src=\"lost.svg\"");
        place("a note");
        let mut names: Vec<_> =
            std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["index.html", "lost.json", "lost.svg", "lost.txt"]);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(run(&std::env::current_exe().unwrap(), &[&LOST], true, &mut |_, _| ()).is_err(), "a file is no folder");
    }
}
