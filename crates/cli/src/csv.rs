//! CSV as RFC 4180 has it, over bytes: fields with commas, quotes or line ends are in quotes, a quote in them is doubled.

/// Appends a field.
pub fn write_field(field: &[u8], out: &mut Vec<u8>) {
    // An empty line is no record, so an empty field is written as quotes.
    if !field.is_empty() && !field.iter().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
        return out.extend_from_slice(field);
    }
    out.push(b'"');
    for byte in field {
        out.push(*byte);
        if *byte == b'"' {
            out.push(b'"');
        }
    }
    out.push(b'"');
}

/// Whether a line ends within quotes, if it does not begin there: its quotes do not come in pairs. A line that begins within quotes ends
/// there otherwise.
pub fn is_odd(line: &[u8]) -> bool {
    line.iter().filter(|byte| **byte == b'"').count() % 2 == 1
}

/// The fields of a whole record without its line end.
pub fn fields(record: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut fields = Vec::new();
    let mut rest = record;
    loop {
        let (field, after) = match rest.split_first() {
            Some((b'"', inside)) => quoted(inside)?,
            _ => {
                let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
                if rest[..end].contains(&b'"') {
                    return Err("a quote within a field that does not begin with one".into());
                }
                (rest[..end].to_vec(), &rest[end..])
            }
        };
        fields.push(field);
        match after.split_first() {
            None => return Ok(fields),
            Some((b',', next)) => rest = next,
            Some(_) => return Err("something follows the quote that ends a field".into()),
        }
    }
}

/// A field after its first quote, and what follows its last.
fn quoted(mut rest: &[u8]) -> Result<(Vec<u8>, &[u8]), String> {
    let mut field = Vec::new();
    loop {
        let quote = rest.iter().position(|byte| *byte == b'"').ok_or("a field whose quotes do not end")?;
        field.extend_from_slice(&rest[..quote]);
        rest = &rest[quote + 1..];
        match rest.split_first() {
            Some((b'"', after)) => {
                field.push(b'"');
                rest = after;
            }
            _ => return Ok((field, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let all: [&[u8]; 7] = [b"", b"a", b"a,b", b"say \"x\"", b"two\nlines\r\n", b"\"", b"\xff\x00"];
        for first in all {
            for second in all {
                let mut record = Vec::new();
                write_field(first, &mut record);
                record.push(b',');
                write_field(second, &mut record);
                assert!(!is_odd(&record));
                assert_eq!(fields(&record).unwrap(), [first, second], "{}", record.escape_ascii());
            }
        }
        assert_eq!(fields(b"a,,c").unwrap(), [&b"a"[..], b"", b"c"]);
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        for record in [&b"a\"b\""[..], b"\"a\"b", b"\"a"] {
            assert!(fields(record).is_err(), "{}", record.escape_ascii());
        }
        assert!(is_odd(b"a,\"two") && is_odd(b"lines\"") && !is_odd(b"\"a\",b"));
    }
}
