use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;

fn bytes_of<T: Encode + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out).unwrap();
    out
}

/// That two keys come back, and compare as their bytes do.
fn keeps_order<K: Key + Ord + Debug>(a: &K, b: &K) {
    let (x, y) = (bytes_of(a), bytes_of(b));
    assert_eq!(a.cmp(b), x.cmp(&y), "{a:?} {b:?} are {x:?} {y:?}");
    assert_eq!(&K::decode(&x).unwrap(), a);
    assert_eq!(K::tag().to_string().parse::<TypeTag>().unwrap(), K::tag());
    assert_eq!(TypeTag::from_word(K::tag().word()), K::tag());
}

/// That the data of a key give its bytes again.
fn comes_back_from_data<K: Key>(key: &K) {
    let bytes = bytes_of(key);
    let datum = K::tag().to_datum(&bytes).unwrap();
    assert_eq!(K::tag().from_datum(&datum).unwrap(), bytes, "{datum:?}");
}

/// That the text of a key gives its bytes again.
fn comes_back_from_text<K: Key>(key: &K) {
    let bytes = bytes_of(key);
    let text = K::tag().to_text(&bytes).unwrap();
    assert_eq!(K::tag().from_text(&text).unwrap().unwrap(), bytes, "{text}");
}

/// Bytes with many zeroes, and of the marks.
fn tricky() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0, 0, 1, 2, 0xfe, 0xff, b'a']), 0..6)
}

fn tricky_string() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!['\0', '\x01', 'a', ',', '"', '\u{7f}', 'ÿ', '\u{10ffff}']), 0..6)
        .prop_map(|chars| chars.into_iter().collect())
}

proptest! {
    #[test]
    fn integers_keep_their_order(a: i64, b: i64, c: u128, d: u128, e: i8, f: i8) {
        keeps_order(&a, &b);
        keeps_order(&(a as u64), &(b as u64));
        keeps_order(&c, &d);
        keeps_order(&(c as i128), &(d as i128));
        keeps_order(&e, &f);
        keeps_order(&(e as u8), &(f as u8));
        keeps_order(&(a as i16), &(b as i16));
        keeps_order(&(a as u16), &(b as u16));
        keeps_order(&(a as i32), &(b as i32));
        keeps_order(&(a as u32), &(b as u32));
        comes_back_from_text(&a);
        comes_back_from_text(&c);
        comes_back_from_text(&e);
    }

    #[test]
    fn strings_chars_and_bools_keep_their_order(a in tricky_string(), b in tricky_string(), c: char, d: char, e: bool, f: bool) {
        keeps_order(&a, &b);
        keeps_order(&c, &d);
        keeps_order(&e, &f);
        comes_back_from_text(&a);
        comes_back_from_text(&e);
    }

    #[test]
    fn bytes_keep_their_order(a in tricky(), b in tricky()) {
        keeps_order(&a, &b);
        keeps_order(&[a.first().copied().unwrap_or(0), 7], &[b.first().copied().unwrap_or(0), 7]);
    }

    #[test]
    fn pairs_keep_their_order(a in (tricky(), tricky()), b in (tricky(), tricky())) {
        keeps_order(&a, &b);
    }

    #[test]
    fn tuples_keep_their_order(
        a in (tricky_string(), any::<i16>(), tricky(), any::<u32>()),
        b in (tricky_string(), any::<i16>(), tricky(), any::<u32>()),
    ) {
        keeps_order(&a, &b);
        let same_front = (a.0.clone(), a.1, b.2.clone(), b.3);
        keeps_order(&a, &same_front);
        keeps_order(&(a.1, a.0.clone(), a.3), &(b.1, b.0.clone(), b.3));
        comes_back_from_text(&(a.1, a.3));
        comes_back_from_text(&(a.0.clone(), b.0.clone(), a.3));
        comes_back_from_text(&(a.0, b.0));
    }

    #[test]
    fn the_keys_with_a_prefix_are_those_that_begin_with_it(a in (tricky_string(), any::<i8>(), tricky()), s in tricky_string(), i: i8) {
        let begins = |prefix: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            prefix(&mut out);
            bytes_of(&a).starts_with(&out)
        };
        let with = |p: (String,)| begins(&|out| PrefixOf::<(String, i8, Vec<u8>)>::encode_prefix(&p, out));
        prop_assert!(with((a.0.clone(),)));
        prop_assert_eq!(with((s.clone(),)), s == a.0);
        let two = (s.clone(), i);
        prop_assert_eq!(begins(&|out| PrefixOf::<(String, i8, Vec<u8>)>::encode_prefix(&two, out)), s == a.0 && i == a.1);
    }

    #[test]
    fn borrowed_forms_have_the_bytes_of_what_they_stand_for(a in tricky_string(), b in tricky(), c: i16) {
        fn same<T: Encode + GivenAs<Q>, Q: ?Sized>(owned: &T, given: &Q) {
            let mut out = Vec::new();
            T::encode_given(given, &mut out).unwrap();
            assert_eq!(out, bytes_of(owned));
        }
        let (s, bytes) = (a.as_str(), b.as_slice());
        let (os, path) = (OsString::from_vec(b.clone()), PathBuf::from(OsString::from_vec(b.clone())));
        let list = vec![a.clone(), a.clone()];
        same(&a, s);
        same(&a, &s);
        same(&b, bytes);
        same(&list, list.as_slice());
        same(&(a.clone(), c), &(s, c));
        same(&(c, a.clone()), &(c, s));
        same(&(a.clone(), b.clone(), a.clone()), &(&a, bytes, &a));
        same(&(os.clone(), path.clone(), os.clone()), &(os.as_os_str(), path.as_path(), &os));
        same(&(path.clone(), c), &(&path, c));
        same(&(list.clone(), c, list.clone()), &(list.as_slice(), c, &list));
        same(&((a.clone(), c), (b.clone(), a.clone())), &((s, c), (bytes, s)));
        same(&(c, (a.clone(), (a.clone(), c)), a.clone(), c, c, b.clone()), &(c, (s, (s, c)), a.clone(), c, c, bytes));
        let mut prefix = Vec::new();
        PrefixOf::<(String, Vec<u8>, i16)>::encode_prefix(&(s, bytes), &mut prefix);
        prop_assert!(bytes_of(&(a.clone(), b.clone(), c)).starts_with(&prefix));
    }

    #[test]
    fn no_bytes_make_decoding_panic(bytes in tricky()) {
        let _ = <(String, u16, Vec<u8>)>::decode(&bytes);
        let _ = <(Vec<u8>, bool)>::decode(&bytes);
        let _ = <(char, i64)>::decode(&bytes);
        let _ = TypeTag::from_word(bytes.iter().fold(0, |w, b| w << 8 | u64::from(*b))).to_text(&bytes);
    }
}

/// Times from long before 1970 to long after.
fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs()) * 20;
    if nanoseconds < 0 { SystemTime::UNIX_EPOCH - distance } else { SystemTime::UNIX_EPOCH + distance }
}

fn floats_keep_their_order<K: Key + Debug + Copy>(a: K, b: K, order: Ordering, bits: impl Fn(K) -> u64) {
    assert_eq!(bytes_of(&a).cmp(&bytes_of(&b)), order, "{a:?} {b:?}");
    assert_eq!(bits(K::decode(&bytes_of(&a)).unwrap()), bits(a));
}

proptest! {
    #[test]
    fn floats_are_in_total_order(a: u64, b: u64) {
        let (x, y) = (f64::from_bits(a), f64::from_bits(b));
        floats_keep_their_order(x, y, x.total_cmp(&y), f64::to_bits);
        let (x, y) = (f32::from_bits(a as u32), f32::from_bits(b as u32));
        floats_keep_their_order(x, y, x.total_cmp(&y), |float| u64::from(float.to_bits()));
    }

    #[test]
    fn times_addresses_and_os_strings_keep_their_order(a: i64, b: i64, c: u128, d: u128, e in tricky(), f in tricky()) {
        keeps_order(&time(a), &time(b));
        keeps_order(&time(a / 1_000_000_000 * 1_000_000_000), &time(a));
        keeps_order(&Duration::from_nanos(a as u64), &Duration::from_nanos(b as u64));
        let (v4, v6) = (Ipv4Addr::from(c as u32), Ipv6Addr::from(d));
        keeps_order(&v4, &Ipv4Addr::from(d as u32));
        keeps_order(&Ipv6Addr::from(c), &v6);
        keeps_order(&IpAddr::from(v4), &IpAddr::from(v6));
        keeps_order(&IpAddr::from(Ipv6Addr::from(c)), &IpAddr::from(v6));
        comes_back_from_text(&v4);
        comes_back_from_text(&v6);
        comes_back_from_text(&IpAddr::from(v4));
        comes_back_from_text(&f64::from_bits(a as u64 & !(0x7ff << 52)));
        comes_back_from_text(&f64::from_bits(a as u64 | 0x7ff << 52));
        comes_back_from_text(&(f32::from_bits(a as u32 | 0xff << 23), f64::from_bits(a as u64)));
        comes_back_from_data(&vec![f64::from_bits(a as u64 | 0x7ff << 52), f64::NAN]);
        comes_back_from_data(&(f32::from_bits(a as u32 | 0xff << 23), f32::from_bits(a as u32)));
        let (e, f) = (OsString::from_vec(e), OsString::from_vec(f));
        keeps_order(&e, &f);
        keeps_order(&(e, 1u8), &(f.clone(), 0u8));
        let path = PathBuf::from(f);
        assert_eq!(PathBuf::decode(&bytes_of(&path)).unwrap(), path);
    }

    #[test]
    fn options_and_vectors_keep_their_order(
        a: Option<i16>, b: Option<i16>,
        c in prop::collection::vec(tricky_string(), 0..4), d in prop::collection::vec(tricky_string(), 0..4),
        e: Vec<i32>, f: Vec<i32>, g: Vec<Option<bool>>, h: Vec<Option<bool>>,
    ) {
        keeps_order(&a, &b);
        keeps_order(&(a, 7u8), &(b, 3u8));
        keeps_order(&c.first().cloned(), &d.first().cloned());
        keeps_order(&c, &d);
        keeps_order(&e, &f);
        keeps_order(&g, &h);
    }
}

/// As [`keeps_order`], of types whose tag is the hash of their name.
fn keeps_order_by_name<K: Key + Ord + Debug>(a: &K, b: &K, name: &str) {
    let (x, y) = (bytes_of(a), bytes_of(b));
    assert_eq!(a.cmp(b), x.cmp(&y), "{a:?} {b:?} are {x:?} {y:?}");
    assert_eq!(&K::decode(&x).unwrap(), a);
    assert_eq!(K::type_name(), name);
    assert_eq!(K::tag(), TypeTag::named(name));
}

type Nested = (u8, (Vec<String>, Option<Vec<u8>>), (i8, (String, [u8; 2])));

proptest! {
    #[test]
    fn nested_types_keep_their_order(
        a: (u8, (Vec<String>, Option<Vec<u8>>), (i8, (String, [u8; 2]))),
        b: (u8, (Vec<String>, Option<Vec<u8>>), (i8, (String, [u8; 2]))),
        c in prop::collection::vec(prop::collection::vec(tricky(), 0..3), 0..3),
        d in prop::collection::vec(prop::collection::vec(tricky(), 0..3), 0..3),
        e: Option<Option<(bool, u8)>>, f: Option<Option<(bool, u8)>>,
    ) {
        let name = "(u8, (Vec<string>, Option<bytes>), (i8, (string, [u8; 2])))";
        keeps_order_by_name::<Nested>(&a, &b, name);
        keeps_order_by_name::<Nested>(&a, &(a.0, (a.1.0.clone(), b.1.1.clone()), b.2.clone()), name);
        keeps_order_by_name(&c, &d, "Vec<Vec<bytes>>");
        keeps_order_by_name(&(c.clone(), 1u8), &(d.clone(), 0u8), "(Vec<Vec<bytes>>, u8)");
        keeps_order_by_name(&e, &f, "Option<Option<(bool, u8)>>");
    }

    #[test]
    fn data_give_their_bytes_again(
        a: (u8, i128, Option<String>), b: Vec<Option<u64>>, c: (Option<Vec<u8>>, bool, char), d: (f64, String), e: i64,
        f in tricky(), g: (u128, Option<i8>, [u8; 4]), h: u64,
    ) {
        comes_back_from_data(&a);
        comes_back_from_data(&b);
        comes_back_from_data(&c);
        comes_back_from_data(&d);
        comes_back_from_data(&(time(e), Duration::from_nanos(h)));
        comes_back_from_data(&(OsString::from_vec(f.clone()), PathBuf::from(OsString::from_vec(f.clone()))));
        comes_back_from_data(&f);
        comes_back_from_data(&(g.0, g.1));
        comes_back_from_data(&g.2);
        comes_back_from_data(&(IpAddr::from(Ipv6Addr::from(g.0)), Ipv4Addr::from(h as u32)));
        for tag in [<(u32, String, f32) as Key>::tag(), <Vec<char> as Key>::tag(), <Option<IpAddr> as Key>::tag(), <SystemTime as Key>::tag()] {
            let _ = tag.to_datum(&f);
        }
    }

    #[test]
    fn no_bytes_make_decoding_nested_types_panic(bytes in tricky()) {
        let _ = <(u8, (Vec<String>, Option<Vec<u8>>))>::decode(&bytes);
        let _ = <(Vec<Vec<Vec<u8>>>, (bool, [u8; 3]))>::decode(&bytes);
        let _ = <Option<Option<Vec<u8>>>>::decode(&bytes);
    }
}

#[test]
fn data_of_another_type_are_an_error() {
    let tag = <(u8, bool) as Key>::tag();
    let of = |parts: &[Datum]| tag.from_datum(&Datum::List(parts.to_vec()));
    assert_eq!(of(&[Datum::Text("7".into()), Datum::Bool(true)]).unwrap(), [7, 1]);
    for parts in
        [&[Datum::Unsigned(256), Datum::Bool(true)][..], &[Datum::Unsigned(1)], &[Datum::Unsigned(1), Datum::Absent]]
    {
        assert!(of(parts).is_err(), "{parts:?}");
    }
    let named = TypeTag::named("User 1");
    assert!(named.to_datum(b"x").is_none() && named.from_datum(&Datum::Text("x".into())).is_err());
    assert_eq!(named.from_datum(&Datum::Bytes(vec![1])).unwrap(), [1]);
    assert!(<[u8; 4] as Key>::tag().from_datum(&Datum::Bytes(vec![1])).is_err());
}

#[test]
fn uuids_are_read_and_written() {
    let (tag, text) = ("uuid".parse::<TypeTag>().unwrap(), "67e55044-10b1-426f-9247-bb680e5fe0c8");
    let bytes = tag.from_text(text).unwrap().unwrap();
    assert_eq!((tag.to_text(&bytes).as_deref(), tag.len()), (Some(text), Some(Some(16))));
    assert!(
        tag.from_text("67e5").unwrap().is_err()
            && tag.from_text("+7e55044-10b1-426f-9247-bb680e5fe0c8").unwrap().is_err()
    );
    #[cfg(feature = "uuid")]
    {
        let uuid: ::uuid::Uuid = text.parse().unwrap();
        assert_eq!((bytes_of(&uuid), <::uuid::Uuid as Key>::tag()), (bytes, tag));
        keeps_order(&uuid, &::uuid::Uuid::max());
    }
}

#[test]
fn bytes_of_no_such_type_are_an_error() {
    assert!(Option::<u8>::decode(&[2, 0]).is_err() && Option::<u8>::decode(&[0, 0]).is_err());
    assert!(Vec::<u32>::decode(&[0; 7]).unwrap_err().to_string().contains("3 bytes are too few for u32"));
    assert!(IpAddr::decode(&[5, 0, 0, 0, 0]).unwrap_err().to_string().contains("5 is no version"));
    assert!(Duration::decode(&[0xff; 12]).unwrap_err().to_string().contains("no part of a second"));
    // The last second that can be written, and one that no system knows.
    let mut bytes = bytes_of(&i64::MAX);
    bytes.extend([0; 4]);
    let _ = SystemTime::decode(&bytes);
}

#[test]
fn borrowed_forms_are_written_alike() {
    assert_eq!(bytes_of(OsStr::new("a")), bytes_of(&OsString::from("a")));
    assert_eq!(bytes_of(Path::new("/a")), bytes_of(&PathBuf::from("/a")));
    assert_eq!(bytes_of(&[1u16, 0][..]), bytes_of(&vec![1u16, 0]));
    assert_eq!(bytes_of("aé\0"), bytes_of(&"aé\0".to_owned()));
    assert_eq!(bytes_of(&[1u8, 0][..]), bytes_of(&vec![1u8, 0]));
}

#[test]
fn tags_tell_types_apart() {
    let tags = [
        <u64 as Key>::tag(),
        <i64 as Key>::tag(),
        <u32 as Key>::tag(),
        <String as Key>::tag(),
        <Vec<u8> as Key>::tag(),
        <(u32, String) as Key>::tag(),
        <(String, u32) as Key>::tag(),
        <[u8; 4] as Key>::tag(),
        <[u8; 5] as Key>::tag(),
        <() as Value>::tag(),
        <f64 as Key>::tag(),
        <f32 as Key>::tag(),
        <Option<u64> as Key>::tag(),
        <Vec<u64> as Key>::tag(),
        <Vec<Option<u64>> as Key>::tag(),
        <OsString as Key>::tag(),
        <PathBuf as Key>::tag(),
        <IpAddr as Key>::tag(),
        <Ipv4Addr as Key>::tag(),
        <Ipv6Addr as Key>::tag(),
        <Duration as Key>::tag(),
        <SystemTime as Key>::tag(),
    ];
    for (i, a) in tags.iter().enumerate() {
        assert!(tags[i + 1..].iter().all(|b| a != b), "{a}");
    }
    assert_eq!(<(u32, String) as Key>::tag().to_string(), "(u32, string)");
    assert_eq!(<Vec<u8> as Key>::tag(), TypeTag::BYTES);
    assert_eq!(<Vec<Option<f32>> as Key>::tag().to_string(), "Vec<Option<f32>>");
    assert_eq!(<(Option<String>, SystemTime) as Key>::tag().to_string(), "(Option<string>, time)");
    assert_eq!(<Vec<Vec<u8>> as Key>::tag().to_string(), "Vec<bytes>");
    for text in ["(u32, nothing)", "Vec<nothing>", "Option<Option<u8>>", "Vec<Vec<u8>>"] {
        assert!(text.parse::<TypeTag>().is_err(), "{text}");
    }
}

#[test]
fn text_that_is_no_such_type_is_an_error() {
    let read = |tag: TypeTag, text: &str| tag.from_text(text).unwrap();
    assert!(read(<u8 as Key>::tag(), "256").unwrap_err().to_string().contains("\"256\" is not of type u8"));
    assert!(read(<(u8, u8) as Key>::tag(), "1").is_err());
    assert_eq!(read(<(u8, String) as Key>::tag(), "1,a,b").unwrap(), b"\x01a,b");
    let pair = <(String, String) as Key>::tag();
    assert_eq!(read(pair, "\"a,\"\"b\",\"c\",d").unwrap(), b"a,\"b\0\x01\"c\",d");
    for text in ["\"a,b", "\"a\"b,c", "\"a\"", "\"a,b\""] {
        assert!(read(pair, text).unwrap_err().to_string().contains("is not of type (string, string)"), "{text}");
    }
    assert!(TypeTag::BYTES.from_text("x").is_none() && <[u8; 4] as Key>::tag().to_text(b"abcd").is_none());
}

#[test]
fn a_nan_has_its_bits_in_its_text() {
    let (double, single) = (<f64 as Key>::tag(), <f32 as Key>::tag());
    let text = |tag: TypeTag, bytes: &[u8]| tag.to_text(bytes).unwrap();
    assert_eq!(text(double, &bytes_of(&f64::NAN)), "NaN");
    assert_eq!(text(double, &bytes_of(&-f64::NAN)), "NaN(0xfff8000000000000)");
    assert_eq!(text(single, &bytes_of(&f32::from_bits(0x7f80_0001))), "NaN(0x7f800001)");
    let datum = single.to_datum(&bytes_of(&f32::from_bits(0x7f80_0001))).unwrap();
    assert_eq!(datum, Datum::Text("NaN(0x7f800001)".into()));
    for no_nan in [
        "NaN(0x3ff0000000000000)",
        "NaN(0x7ff0000000000000)",
        "NaN(1)",
        "NaN(0x)",
        "NaN(0xfff8000000000000",
        "NaN(0x+ff8000000000000)",
    ] {
        assert!(double.from_text(no_nan).unwrap().is_err(), "{no_nan}");
        assert!(double.from_datum(&Datum::Text(no_nan.into())).is_err(), "{no_nan}");
    }
}

#[test]
fn a_vector_of_elements_without_bytes_is_an_error() {
    // How many there are would be lost.
    let error = vec![[0_u8; 0]; 3].encode(&mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("a [u8; 0] has no bytes"), "{error}");
    assert!(<Vec<[u8; 0]>>::encode_given(&[[]][..], &mut Vec::new()).is_err());
    assert!(HashMap::<[u8; 0], [u8; 0]>::from([([], [])]).encode(&mut Vec::new()).is_err());
    assert!(vec![([0_u8; 0], [0_u8; 0])].encode(&mut Vec::new()).is_err());
    assert_eq!(bytes_of(&Vec::<[u8; 0]>::new()), b"");
    // With another part, or within another type, it has bytes.
    for nested in [vec![vec![[0_u8; 0]; 3]], vec![]] {
        assert_eq!(<Vec<Vec<[u8; 0]>>>::decode(&bytes_of(&nested)).unwrap(), nested);
    }
    assert_eq!(<Vec<[u8; 0]>>::decode(b"").unwrap(), [[0_u8; 0]; 0]);
    let error = <Vec<[u8; 0]>>::decode(b"1").unwrap_err().to_string();
    assert!(error.contains("a [u8; 0] has no bytes"), "{error}");
    assert!(HashMap::<[u8; 0], [u8; 0]>::decode(b"1").is_err());
}

#[test]
fn a_vector_of_nothing_is_no_type() {
    assert!("Vec<()>".parse::<TypeTag>().unwrap_err().to_string().contains("names no type"));
    assert!("Vec<Option<()>>".parse::<TypeTag>().is_ok());
    // As a file may say it.
    let tag = TypeTag::from_word(0x503);
    assert_eq!(tag.to_string().parse::<TypeTag>().unwrap(), tag);
    assert!(tag.from_datum(&Datum::List(vec![Datum::List(Vec::new()); 3])).is_err());
    assert!(!matches!(tag.to_datum(b"a"), Some(Datum::List(_))));
}

#[test]
fn data_of_another_type_are_named_as_a_user_writes_them() {
    let told = |datum: Datum| <(u8, String) as Key>::tag().from_datum(&datum).unwrap_err().to_string();
    assert_eq!(told(Datum::Unsigned(1)), "1 is not of type (u8, string)");
    assert_eq!(told(Datum::Bytes(b"a\xff".into())), "\"a\\xff\" is not of type (u8, string)");
    let list = Datum::List(vec![Datum::Signed(-1), Datum::Text("b".into()), Datum::Bool(true), Datum::Absent]);
    assert_eq!(told(list), "[-1, \"b\", true, nothing] is not of type (u8, string)");
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct User {
    name: String,
    born: u16,
}

impl Named for User {
    const NAME: &'static str = "User 1";
}

#[test]
fn what_serde_can_write_is_a_value() {
    let user = User { name: "Ada".into(), born: 1815 };
    let bytes = bytes_of(&user);
    assert_eq!(User::decode(&bytes).unwrap(), user);
    let error = User::decode(&bytes[..2]).unwrap_err().to_string();
    assert!(error.contains("2 bytes are no User 1"), "{error}");
    assert!(User::decode(&[&bytes[..], &[0]].concat()).unwrap_err().to_string().contains("left over"));
    assert_eq!(User::type_name(), "User 1");
}

#[test]
fn what_holds_types_that_serde_writes_is_a_value() {
    fn same<V: Value + PartialEq + Debug>(value: V, name: &str) -> Vec<u8> {
        let bytes = bytes_of(&value);
        assert_eq!(V::decode(&bytes).unwrap(), value);
        assert_eq!(V::type_name(), name);
        assert!((0..bytes.len()).all(|len| V::decode(&bytes[..len]).ok().as_ref() != Some(&value)));
        bytes
    }
    let user = |name: &str| User { name: name.into(), born: 1815 };
    assert_eq!(same(vec![user("")], "Vec<User 1>"), [0, 0, 0, 3, 0, 0x97, 0x0e]);
    same(Vec::<User>::new(), "Vec<User 1>");
    same(vec![user("Ada"), user(""), user("Grace")], "Vec<User 1>");
    same(Some(user("Ada")), "Option<User 1>");
    same(None::<User>, "Option<User 1>");
    same((7_u32, user("Ada")), "(u32, User 1)");
    same((user("Ada"), 7_u32), "(User 1, u32)");
    same(vec![(7_u32, Some(user("Ada")))], "Vec<(u32, Option<User 1>)>");
    same(HashMap::from([("a".to_owned(), user("Ada")), ("g".to_owned(), user("Grace"))]), "Vec<(string, User 1)>");
    same(BTreeMap::from([(1_u8, vec![user("Ada")])]), "Vec<(u8, Vec<User 1>)>");
    let tags = [<Vec<User> as Value>::tag(), <Option<User> as Value>::tag(), <User as Value>::tag()];
    assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[0] != tags[2]);
    // A length that is more than what follows.
    assert!(<Vec<User>>::decode(&[0xff, 0xff, 0xff, 0xff, 0]).unwrap_err().to_string().contains("User 1"));
}

/// A type of values that serde cannot write.
#[derive(Debug, serde::Deserialize)]
struct Refused;

impl serde::Serialize for Refused {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("never"))
    }
}

impl Named for Refused {
    const NAME: &'static str = "Refused";
}

#[test]
fn what_serde_refuses_is_an_error_within_other_types_too() {
    fn error<V: Value>(value: &V) {
        let given = V::encode_given(value, &mut Vec::new()).unwrap_err().to_string();
        let encoded = value.encode(&mut Vec::new()).unwrap_err().to_string();
        assert!(given.contains("a Refused cannot be written") && encoded == given, "{given}, {encoded}");
    }
    error(&Refused);
    error(&vec![Refused]);
    error(&Some(Refused));
    error(&(1_u8, Refused));
    error(&(Refused, 1_u8));
    error(&((Refused, 1_u8), 1_u8));
    error(&vec![Some((Refused, 1_u8))]);
    error(&HashMap::from([(1_u8, Refused)]));
}

#[test]
fn types_that_are_stored_as_others_have_their_bytes_and_tags() {
    fn same<A: Key + PartialEq + Debug, B: Key>(given: A, stored: B) {
        assert_eq!((bytes_of(&given), A::tag()), (bytes_of(&stored), B::tag()));
        assert_eq!(A::decode(&bytes_of(&given)).unwrap(), given);
    }
    same(7_usize, 7_u64);
    same(-7_isize, -7_i64);
    same::<Box<str>, _>("a\0b".into(), "a\0b".to_owned());
    same::<Arc<str>, _>("ab".into(), "ab".to_owned());
    same::<Box<[u8]>, _>([1, 0, 2][..].into(), vec![1_u8, 0, 2]);
    same::<Arc<[u8]>, _>([][..].into(), Vec::<u8>::new());
    same((Box::<str>::from("a\0"), 7_usize), ("a\0".to_owned(), 7_u64));
    same::<Vec<Box<str>>, _>(vec!["a".into(), "b".into()], vec!["a".to_owned(), "b".to_owned()]);
    fn begins<K>(prefix: &(impl PrefixOf<K> + ?Sized)) -> Vec<u8> {
        let mut out = Vec::new();
        prefix.encode_prefix(&mut out);
        out
    }
    assert_eq!([begins::<Box<str>>("ab"), begins::<Arc<str>>("ab"), begins::<String>("ab")], [b"ab"; 3]);
    assert_eq!([begins::<Box<[u8]>>(&[1][..]), begins::<Arc<[u8]>>(&[1][..])], [[1]; 2]);
    assert!(usize::decode(&[1]).is_err() && Box::<str>::decode(&[0xff]).is_err());
}

#[test]
fn maps_as_values_are_vectors_of_their_pairs() {
    let pairs = [("b", 1_u32), ("a", 2), ("ab", 3)].map(|(key, value)| (key.to_owned(), value));
    let (ordered, hashed) = (BTreeMap::from(pairs.clone()), HashMap::<_, _>::from(pairs));
    let vector: Vec<(String, u32)> = ordered.clone().into_iter().collect();
    assert_eq!(bytes_of(&ordered), bytes_of(&vector));
    assert_eq!(bytes_of(&hashed), bytes_of(&vector));
    assert_eq!(BTreeMap::decode(&bytes_of(&hashed)).unwrap(), ordered);
    assert_eq!(HashMap::decode(&bytes_of(&ordered)).unwrap(), hashed);
    assert_eq!(<BTreeMap<String, u32> as Value>::tag(), <Vec<(String, u32)> as Value>::tag());
    assert_eq!(<HashMap<String, u32> as Value>::tag(), <Vec<(String, u32)> as Value>::tag());
    assert!(BTreeMap::<String, u32>::decode(b"a").is_err());
}

#[test]
fn options_are_given_in_borrowed_forms() {
    fn given<K: GivenAs<Q>, Q>(given: Q) -> Vec<u8> {
        let mut out = Vec::new();
        K::encode_given(&given, &mut out).unwrap();
        out
    }
    assert_eq!(given::<Option<String>, _>(Some("a\0")), bytes_of(&Some("a\0".to_owned())));
    assert_eq!(given::<Option<String>, _>(None::<&str>), bytes_of(&None::<String>));
    assert_eq!(given::<Option<u64>, _>(None), bytes_of(&None::<u64>));
    assert_eq!(given::<(Option<String>, u8), _>((Some("a"), 7)), bytes_of(&(Some("a".to_owned()), 7_u8)));
    assert_eq!(given::<Option<(String, u8)>, _>(Some(("a", 7))), bytes_of(&Some(("a".to_owned(), 7_u8))));
}

#[test]
fn a_type_gets_a_name_by_a_line() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Plain(u8);
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Versioned(Vec<Plain>);
    crate::named!(Plain);
    crate::named!(Versioned, "Versioned 3");
    assert_eq!((<Plain as Named>::NAME, <Versioned as Named>::NAME), ("Plain", "Versioned 3"));
    assert_eq!(<Versioned as Value>::tag(), TypeTag::named("Versioned 3"));
    let value = Versioned(vec![Plain(1), Plain(2)]);
    assert_eq!(Versioned::decode(&bytes_of(&value)).unwrap(), value);
}
