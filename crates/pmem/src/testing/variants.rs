//! Names of the variants of an enum, for tests that have a row for each.

/// A list of the names of an enum's variants, and a function that names a value's variant.
///
/// A variant that is not named does not compile. So a test that compares its rows with the list has a row for every variant.
///
/// ```
/// enum Fault {
///     Missing,
///     Wrong { found: u64 },
/// }
/// durix_pmem::variants!(ALL, name: Fault { Missing, Wrong });
/// assert_eq!((ALL, name(&Fault::Wrong { found: 1 })), (&["Missing", "Wrong"][..], "Wrong"));
/// ```
#[macro_export]
macro_rules! variants {
    ($all:ident, $name:ident: $of:ident { $($variant:ident),+ $(,)? }) => {
        /// The names of all variants.
        const $all: &[&str] = &[$(stringify!($variant)),+];

        /// The name of the variant.
        fn $name(value: &$of) -> &'static str {
            match value {
                $($of::$variant { .. } => stringify!($variant)),+
            }
        }
    };
}

/// Asserts that each of `all` is among the classes that rows are about.
///
/// # Panics
/// If one is not.
pub fn assert_each_has_a_row<'a>(all: &[&str], rows: impl IntoIterator<Item = &'a str>) {
    let rows: std::collections::BTreeSet<_> = rows.into_iter().collect();
    let missing: Vec<_> = all.iter().filter(|name| !rows.contains(*name)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
