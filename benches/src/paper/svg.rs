//! A report as a drawing, in the look of one family: one panel below the other, axes in grey, a fixed colour for each
//! contestant in the order of the table, ours thicker than the rest.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figure::Error;
use super::report::{Form, Panel, Report};

const WIDTH: u32 = 760;
const PANEL: u32 = 430;
const HEAD: u32 = 64;
const LEGEND: i32 = 190;
const GREY: RGBColor = RGBColor(110, 110, 110);
const PALE: RGBColor = RGBColor(228, 228, 228);

/// Colours that can be told apart, also by those who see red and green alike.
const COLOURS: [RGBColor; 12] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(127, 160, 40),
    RGBColor(23, 160, 170),
    RGBColor(160, 160, 160),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn<'a> = Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// The drawing, as the text of an SVG file.
///
/// # Errors
/// [`Error::Drawing`]
pub fn render(report: &Report, path: &str) -> Result<String, Error> {
    let mut text = String::new();
    let panels: Vec<&Panel> = report.panels.iter().filter(|p| !p.series.is_empty()).collect();
    let height = HEAD + PANEL * panels.len().max(1) as u32;
    let names = names(&panels);
    let drawn = (|| -> Drawn<'_> {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let (head, body) = root.split_vertically(HEAD);
        let line = |text: &str, size: i32, colour: RGBColor, y: i32| {
            head.draw(&Text::new(text.to_owned(), (16, y), ("sans-serif", size).into_font().color(&colour)))
        };
        line(&format!("{}: {}", report.header.name, report.header.title), 18, BLACK, 12)?;
        line(&report.header.machine, 12, GREY, 38)?;
        for (panel, area) in panels.iter().zip(body.split_evenly((panels.len().max(1), 1))) {
            draw(panel, &names, &area)?;
        }
        root.present()
    })();
    drawn.map_err(|error| Error::Drawing { path: path.to_owned(), reason: error.to_string() })?;
    Ok(text)
}

/// The contestants of all panels, in the order in which they appear; the colour of each goes by its place.
fn names(panels: &[&Panel]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for curve in panels.iter().flat_map(|p| &p.series).filter(|c| !c.name.starts_with("floor")) {
        if !names.contains(&curve.name) {
            names.push(curve.name.clone());
        }
    }
    names
}

/// Grey for what is no contestant: the floors.
fn colour_of(name: &str, names: &[String]) -> RGBColor {
    names.iter().position(|n| n == name).map_or(GREY, |place| COLOURS[place % COLOURS.len()])
}

fn draw<'a>(panel: &Panel, names: &[String], area: &Area<'a>) -> Drawn<'a> {
    let medians = || panel.series.iter().flat_map(|c| c.points.iter().flatten()).map(|p| p.median);
    let top = medians().fold(0.0, f64::max) * 1.08 + f64::MIN_POSITIVE;
    let (plot, legend) = area.split_horizontally(WIDTH as i32 - LEGEND);
    let places = panel.x.len() as f64;
    let caption = format!("{} ({}, {})", panel.title, panel.medium, panel.pages);
    let mut chart = ChartBuilder::on(&plot)
        .margin(12)
        .caption(caption, ("sans-serif", 13))
        .x_label_area_size(42)
        .y_label_area_size(58)
        .build_cartesian_2d(-0.5..places - 0.5, 0.0..top)?;
    let label = |x: &f64| {
        let near = x.round();
        if (x - near).abs() > 0.01 || near < 0.0 {
            String::new()
        } else {
            panel.x.get(near as usize).cloned().unwrap_or_default()
        }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .bold_line_style(PALE)
        .axis_style(GREY)
        .label_style(("sans-serif", 11).into_font().color(&GREY))
        .axis_desc_style(("sans-serif", 12))
        .x_labels(panel.x.len() * 2 + 1)
        .x_label_formatter(&label)
        .x_desc(&panel.x_label)
        .y_desc(&panel.y_label)
        .draw()?;
    for (number, curve) in panel.series.iter().enumerate() {
        let colour = colour_of(&curve.name, names);
        let points = curve.points.iter().enumerate().filter_map(|(x, p)| p.map(|p| (x as f64, p.median, p.spread)));
        match panel.form {
            Form::Lines => {
                let style = colour.stroke_width(if is_ours(&curve.name) { 3 } else { 1 });
                chart.draw_series(LineSeries::new(points.clone().map(|(x, y, _)| (x, y)), style))?;
                chart.draw_series(points.clone().map(|(x, y, s)| {
                    PathElement::new(vec![(x, (y * (1.0 - s)).max(0.0)), (x, y * (1.0 + s))], colour.mix(0.5))
                }))?;
                chart.draw_series(points.map(|(x, y, _)| Circle::new((x, y), 3, colour.filled())))?;
            }
            Form::Bars => {
                let width = 0.8 / panel.series.len() as f64;
                let left = -0.4 + number as f64 * width;
                chart.draw_series(points.map(|(x, y, _)| {
                    Rectangle::new([(x + left, 0.0), (x + left + width * 0.92, y)], colour.filled())
                }))?;
            }
        }
    }
    draw_legend(panel, names, &legend)
}

fn draw_legend<'a>(panel: &Panel, names: &[String], area: &Area<'a>) -> Drawn<'a> {
    for (number, curve) in panel.series.iter().enumerate() {
        let y = 48 + number as i32 * 20;
        let colour = colour_of(&curve.name, names);
        area.draw(&Rectangle::new([(4, y - 4), (22, y + 4)], colour.filled()))?;
        let style = ("sans-serif", 12).into_font().color(&BLACK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(curve.name.clone(), (28, y), style))?;
    }
    Ok(())
}

/// Whether a contestant is one of the paper's own, which ours are.
fn is_ours(name: &str) -> bool {
    name.starts_with("CSO") || name == "STPS"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::paper::report::{Header, Point};
    use crate::paper::{Error, Figure, Report};
    use crate::place::Place;

    /// Not one of the real ones: a test that names these compiles what they measure.
    static FIGURE: Figure = Figure {
        name: "one",
        title: "title",
        source: "source",
        keys: None,
        run: |_| Err(Error::NoKeys { name: "one" }),
    };

    #[test]
    fn every_contestant_and_place_is_in_the_drawing() {
        let place = Place::at("/dev/shm".into());
        let x = ["2K", "8K"].map(String::from).to_vec();
        let mut panel = Panel::new("a title", &place, "a medium", "").axes("size", x, "M ops/s", Form::Lines);
        panel.set("STPS", 0, Point::exact(2.0));
        panel.set("TwoRounds", 1, Point::exact(1.0));
        let bars = Panel { form: Form::Bars, ..panel.clone() };
        let header = Header::new(&FIGURE, true, &Machine::this());
        let report = Report { header, panels: vec![panel, bars], claims: vec![], notes: vec![] };
        let text = render(&report, "x.svg").unwrap();
        for part in ["<svg", "STPS", "TwoRounds", "2K", "8K", "M ops/s", "a title", FIGURE.name, "</svg>"] {
            assert!(text.contains(part), "{part}");
        }
    }
}
