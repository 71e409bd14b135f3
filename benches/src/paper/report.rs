//! What a figure has measured, as data.

use serde::Serialize;

use super::figure::Figure;
use crate::interleave::Series;
use crate::machine::Machine;
use crate::place::Place;

/// All that is known of a figure: what JSON holds, what the terminal shows, what is drawn.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What, when, where.
    #[serde(flatten)]
    pub header: Header,
    /// One for each place and kind of quantity.
    pub panels: Vec<Panel>,
    /// The paper's claims beside ours.
    pub claims: Vec<Claim>,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// What stands above the data.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// Name of the figure.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The paper.
    pub source: String,
    /// Whether it was measured in a hurry.
    pub quick: bool,
    /// The machine, in one line.
    pub machine: String,
    /// Bytes of its last-level cache.
    pub last_level_cache: Option<u64>,
}

impl Header {
    /// The header of a figure, measured here.
    pub fn new(figure: &Figure, quick: bool, machine: &Machine) -> Self {
        Header {
            name: figure.name.into(),
            title: figure.title.into(),
            source: figure.source.into(),
            quick,
            machine: machine.to_string(),
            last_level_cache: machine.last_level_cache(),
        }
    }
}

/// A quantity of several contestants at several places of one axis.
#[derive(Clone, Debug, Serialize)]
pub struct Panel {
    /// What is shown.
    pub title: String,
    /// Directory of the memory.
    pub directory: String,
    /// Its page size.
    pub pages: String,
    /// The medium.
    pub medium: String,
    /// What the rounds were.
    pub method: String,
    /// Name of the axis along which things vary.
    pub x_label: String,
    /// Its places, in order.
    pub x: Vec<String>,
    /// Name and unit of the quantity.
    pub y_label: String,
    /// How it is drawn.
    pub form: Form,
    /// The contestants.
    pub series: Vec<Curve>,
}

/// How a panel is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Points joined by lines.
    Lines,
    /// Bars beside each other.
    Bars,
}

/// One contestant.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// One a place of the axis; `None` where it does not take part.
    pub points: Vec<Option<Point>>,
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The median of the rounds.
    pub median: f64,
    /// Half the distance between the 10% and the 90% quantile, as a fraction of the median; 0 for exact counts.
    pub spread: f64,
    /// Rounds; 1 for exact counts.
    pub rounds: usize,
}

impl Point {
    /// Nanoseconds.
    pub fn nanoseconds(series: &Series) -> Point {
        Point { median: series.median(), spread: series.spread(), rounds: series.samples().len() }
    }

    /// The same as million operations per second.
    pub fn throughput(series: &Series) -> Point {
        let throughput = Series::new(series.samples().iter().map(|ns| 1000.0 / ns).collect());
        Point::nanoseconds(&throughput)
    }

    /// An exact number.
    pub fn exact(value: f64) -> Point {
        Point { median: value, spread: 0.0, rounds: 1 }
    }
}

impl Panel {
    /// An empty panel for a place.
    pub fn new(title: impl Into<String>, place: &Place, medium: impl Into<String>, method: impl Into<String>) -> Self {
        Panel {
            title: title.into(),
            directory: place.dir.display().to_string(),
            pages: place.pages.to_string(),
            medium: medium.into(),
            method: method.into(),
            x_label: String::new(),
            x: Vec::new(),
            y_label: String::new(),
            form: Form::Lines,
            series: Vec::new(),
        }
    }

    /// Names the axes and what the places of the first are.
    #[must_use]
    pub fn axes(self, x_label: &str, x: Vec<String>, y_label: &str, form: Form) -> Self {
        Panel { x_label: x_label.into(), x, y_label: y_label.into(), form, ..self }
    }

    /// Sets the point of a contestant at place number `at`. Contestants are in the order in which they first appear.
    pub fn set(&mut self, name: &str, at: usize, point: Point) {
        let places = self.x.len();
        let curve = match self.series.iter().position(|c| c.name == name) {
            Some(found) => found,
            None => {
                self.series.push(Curve { name: name.into(), points: vec![None; places] });
                self.series.len() - 1
            }
        };
        self.series[curve].points[at] = Some(point);
    }
}

/// What the paper says, and what was found here.
#[derive(Clone, Debug, Serialize)]
pub struct Claim {
    /// Of what.
    pub what: String,
    /// The paper's words or number.
    pub paper: String,
    /// Ours.
    pub ours: String,
    /// Whether ours reaches the goal that this project has set itself; `None` without one.
    pub holds: Option<bool>,
}

/// `1.25` as `25% ahead`, `0.9` as `10% behind`.
pub fn ahead(ratio: f64) -> String {
    if ratio >= 1.0 {
        format!("{:.0}% ahead", (ratio - 1.0) * 100.0)
    } else {
        format!("{:.0}% behind", (1.0 - ratio) * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_the_reciprocal_of_time_round_by_round() {
        let point = Point::throughput(&Series::new(vec![100.0, 200.0, 400.0]));
        assert_eq!((point.median, point.rounds), (5.0, 3));
        assert_eq!([ahead(1.254), ahead(0.9), ahead(1.0)], ["25% ahead", "10% behind", "0% ahead"]);
    }

    #[test]
    fn a_panel_keeps_the_order_of_its_contestants_and_its_gaps() {
        let place = Place::at("/dev/shm".into());
        let mut panel = Panel::new("t", &place, "m", "r").axes("x", vec!["1".into(), "2".into()], "y", Form::Lines);
        panel.set("b", 1, Point::exact(2.0));
        panel.set("a", 0, Point::exact(1.0));
        panel.set("b", 0, Point::exact(3.0));
        let names: Vec<_> = panel.series.iter().map(|c| (c.name.as_str(), c.points.iter().flatten().count())).collect();
        assert_eq!(names, [("b", 2), ("a", 1)]);
    }
}
