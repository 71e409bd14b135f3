//! A report as tables.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::report::{Claim, Panel, Point, Report};

/// All of it as text.
pub fn render(report: &Report) -> String {
    let header = &report.header;
    let mut text = format!("{}: {}\n{}\n{}\n", header.name, header.title, header.source, header.machine);
    for panel in &report.panels {
        let Panel { title, directory, medium, pages, method, .. } = panel;
        let _ = writeln!(text, "\n{title}\n{directory}: {medium}, {pages}; {method}\n{}", table(panel));
    }
    if !report.claims.is_empty() {
        let _ = writeln!(text, "\n{}", claims(&report.claims));
    }
    report.notes.iter().for_each(|note| _ = writeln!(text, "note: {note}"));
    text
}

fn new_table(header: Vec<String>, left: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    table.column_iter_mut().skip(left).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// Contestants downwards, the axis to the right.
fn table(panel: &Panel) -> Table {
    let first = format!("{}, by {}", panel.y_label, panel.x_label);
    let mut table = new_table(std::iter::once(first).chain(panel.x.iter().cloned()).collect(), 1);
    for curve in &panel.series {
        let cells = curve.points.iter().map(|p| p.map_or_else(String::new, cell));
        table.add_row(std::iter::once(curve.name.clone()).chain(cells));
    }
    table
}

fn cell(point: Point) -> String {
    let digits = match point.median.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let value = format!("{:.digits$}", point.median);
    if point.rounds == 1 { value } else { format!("{value} ±{:.0}%", point.spread * 100.0) }
}

fn claims(claims: &[Claim]) -> Table {
    let header = ["what", "the paper", "here", ""].map(String::from).to_vec();
    let mut table = new_table(header, 4);
    for claim in claims {
        let verdict = match claim.holds {
            Some(true) => "holds",
            Some(false) => "DOES NOT HOLD",
            None => "",
        };
        table.add_row([&claim.what, &claim.paper, &claim.ours, verdict]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_three_digits_or_so() {
        let point = |median, rounds| cell(Point { median, spread: 0.034, rounds });
        assert_eq!([point(1.234, 9), point(12.34, 9), point(1234.5, 1)], ["1.23 ±3%", "12.3 ±3%", "1234"]);
    }
}
