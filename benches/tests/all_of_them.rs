//! What reaches every figure or every set. Here it uses what the library has compiled; among the library's own tests it would be compiled once
//! more.

use durix_bench::logfree::make::{Protocol, Shape, What, count};
use durix_bench::logfree::rounds::Mix;
use durix_bench::paper::{FIGURES, find, run};

#[test]
fn every_figure_is_found_by_its_name_and_a_near_one_is_proposed() {
    for figure in FIGURES {
        assert_eq!(find(figure.name).unwrap().name, figure.name);
        let named = FIGURES.iter().filter(|f| f.name == figure.name).count();
        assert_eq!(named, 1, "{}", figure.name);
    }
    let text = find("cso-fig7").unwrap_err().to_string();
    assert_eq!(text, "there is no figure \"cso-fig7\", did you mean cso-fig7a; `paper list` names all");
    assert_eq!(find("nonsense").unwrap_err().to_string(), "there is no figure \"nonsense\"; `paper list` names all");
}

#[test]
fn wrong_keys_are_refused_before_anything_is_measured() {
    let error = |name, keys| run(find(name).unwrap(), true, Some(keys)).unwrap_err().to_string();
    assert_eq!(error("cso-fig4a", 100), "cso-fig4a has no keys: leave --keys out");
    assert_eq!(error("cso-fig7a", 3), "--keys 3: at least 16, at most 268435456");
}

#[test]
fn fences_are_what_each_way_promises() {
    let per_update = |shape, way| count(What { shape, way, keys: 256, threads: 1, mix: Mix::UPDATES }).unwrap();
    for shape in [Shape::Hash, Shape::List, Shape::SkipList] {
        let soft = per_update(shape, Protocol::Soft).unwrap();
        assert_eq!((soft.write_backs, soft.fences, soft.implicit_drains), (1.0, 1.0, 0.0), "{}", shape.name());
    }
    for shape in [Shape::Hash, Shape::List, Shape::SkipList] {
        let of = |way| per_update(shape, way).map(|n| (n.write_backs, n.fences, n.implicit_drains));
        assert_eq!(of(Protocol::LinkFree), Some((1.0, 1.0, 0.0)), "{}", shape.name());
        assert_eq!(of(Protocol::Flit), Some((2.0, 2.0, 0.0)), "{}", shape.name());
        assert_eq!(of(Protocol::FlitHashed), Some((2.0, 2.0, 0.0)), "{}", shape.name());
        let expected = (shape != Shape::SkipList).then_some((1.0, 1.0, 0.0));
        assert_eq!(of(Protocol::SoftPeer), expected, "{}", shape.name());
    }
    assert_eq!(per_update(Shape::Hash, Protocol::Pset).unwrap().fences, 1.0);
    for shape in [Shape::List, Shape::Hash, Shape::Bst] {
        assert_eq!(per_update(shape, Protocol::Redo).unwrap().fences, 3.0, "{}", shape.name());
    }
    for shape in Shape::ALL {
        if let Some(links) = per_update(shape, Protocol::Links) {
            assert!(links.fences <= 2.1 && links.implicit_drains == 0.0, "{}: {links:?}", shape.name());
        }
        let cso = per_update(shape, Protocol::Cso).unwrap();
        assert!((1.0..1.05).contains(&cso.fences), "{}: {cso:?}", shape.name());
        if let Some(cached) = per_update(shape, Protocol::Cached) {
            let buffered = per_update(shape, Protocol::Buffered).unwrap();
            assert!(cached.fences <= 2.1 && buffered.fences < 0.8 * cached.fences, "{cached:?} {buffered:?}");
        }
        if let Some(volatile) = per_update(shape, Protocol::Volatile) {
            assert_eq!((volatile.fences, volatile.write_backs), (0.0, 0.0), "it has a medium of its own");
        }
    }
}
