//! Tests of the trace parsers: each format, valid and invalid traces, and traces fed in pieces.

use super::csv::Columns;
use super::{Format, Location, Reader, TraceCounts, TraceError, TraceErrorKind};
use pierhead_eviction::Access;

type Read = (Vec<(u64, u64, u64)>, Result<TraceCounts, TraceError>);

/// Parses a trace in pieces of `step` bytes. Returns the key, the size and the tick of each
/// request.
fn read_in(step: usize, format: Format, columns: &str, bytes: &[u8]) -> Read {
    let columns = match columns {
        "" => Columns::default(),
        text => text.parse().expect("columns of a test"),
    };
    let mut reader = Reader::new(format, columns);
    let mut found = Vec::new();
    let mut each = |access: Access<u64>| found.push((access.key, access.size, access.tick));
    let fed = bytes
        .chunks(step)
        .try_for_each(|piece| reader.feed(piece, &mut each));
    let end = fed.and_then(|()| reader.end(&mut each));
    (found, end)
}

/// Parses a trace, and checks that the result does not depend on the length of the pieces.
fn read(format: Format, columns: &str, bytes: &[u8]) -> Read {
    let whole = read_in(bytes.len().max(1), format, columns, bytes);
    for step in [1, 7, 24] {
        assert_eq!(
            read_in(step, format, columns, bytes),
            whole,
            "in steps of {step}"
        );
    }
    whole
}

fn text(format: Format, columns: &str, text: &str) -> Read {
    read(format, columns, text.as_bytes())
}

fn record(time: u32, key: u64, size: u32) -> Vec<u8> {
    let next = (-1_i64).to_le_bytes();
    [
        &time.to_le_bytes()[..],
        &key.to_le_bytes(),
        &size.to_le_bytes(),
        &next,
    ]
    .concat()
}

fn error_at_line(line: u64, wrong: TraceErrorKind) -> TraceError {
    TraceError {
        at: Location::Line(line),
        wrong,
    }
}

#[test]
fn oracle_general_is_little_endian_in_24_bytes() {
    let bytes = [record(1, 0xdead_beef_0102, 500), record(2, 9, u32::MAX)].concat();
    let (found, end) = read(Format::OracleGeneral, "", &bytes);
    assert_eq!(found, [(0xdead_beef_0102, 500, 1), (9, u32::MAX.into(), 2)]);
    assert_eq!(end, Ok(TraceCounts::default()));
}

#[test]
fn a_truncated_record_is_an_error_after_the_complete_ones() {
    let bytes = [record(1, 1, 5), record(2, 2, 5)].concat();
    for keep in 25..48 {
        let (found, end) = read(Format::OracleGeneral, "", &bytes[..keep]);
        assert_eq!(found, [(1, 5, 1)]);
        let at = Location::Record(2);
        assert_eq!(
            end,
            Err(TraceError {
                at,
                wrong: TraceErrorKind::Cut
            }),
            "{keep}"
        );
    }
}

#[test]
fn empty_requests_are_skipped_and_time_never_decreases() {
    let bytes = [
        record(9, 1, 5),
        record(3, 2, 5),
        record(10, 3, 0),
        record(11, 4, 1),
    ]
    .concat();
    let (found, end) = read(Format::OracleGeneral, "", &bytes);
    assert_eq!(found, [(1, 5, 9), (2, 5, 9), (4, 1, 11)]);
    let notes = TraceCounts {
        empty: 1,
        backwards: 1,
        skipped: 0,
    };
    assert_eq!(end, Ok(notes));
}

#[test]
fn columns_are_found_by_their_names() {
    let csv = "Size,comment,Timestamp,obj_id\r\n5,\"a, b\",100,7\r\n1099511627776,,101.5,8";
    let (found, end) = text(Format::Csv, "", csv);
    assert_eq!(found, [(7, 5, 100), (8, 1 << 40, 101)]);
    assert!(end.is_ok());
}

#[test]
fn columns_can_be_given_by_place_or_name() {
    for (columns, csv) in [
        ("time=0,key=1,size=2", "100,7,5\n"),
        ("time=0,key=1,size=2", "when,what,many\n100,7,5\n"),
        ("time=2,key=0,size=1,delimiter=;", "7;5;100\n"),
        ("time=when,key=what,size=many", "many,what,when\n5,7,100\n"),
        ("size=0,key=2,time=1,header=no,delimiter=tab", "5\t100\t7\n"),
    ] {
        let (found, end) = text(Format::Csv, columns, csv);
        assert_eq!(
            (found.as_slice(), end.is_ok()),
            (&[(7, 5, 100)][..], true),
            "{csv}"
        );
    }
}

#[test]
fn cost_and_number_of_images_have_columns_and_the_line_number_replaces_a_missing_time() {
    let mut reader = Reader::new(Format::Csv, Columns::default());
    let mut found = Vec::new();
    let csv = b"key,size,cost,shared\na,5,0.25,3\nb,6,2,1\n";
    reader
        .feed(csv, &mut |access| found.push(access))
        .expect("sound");
    assert_eq!(
        (found[0].cost, found[0].shared, found[0].tick),
        (0.25, 3, 1)
    );
    assert_eq!((found[1].cost, found[1].tick), (2.0, 2));
}

#[test]
fn errors_in_a_csv_name_line_and_cause() {
    for (columns, csv, line, says) in [
        ("", "a,b\n1,2\n", 1, "--csv time=0"),
        ("", "key,size\n1,2\n3\n4,4\n", 3, "1 fields where 2"),
        ("", "key,size\n1,many\n", 2, "size is \"many\""),
        ("", "key,size\n1,-2\n", 2, "size is \"-2\""),
        ("", "time,key,size\nnoon,1,2\n", 2, "time is \"noon\""),
        (
            "size=bytes,key=0",
            "key,size\n1,2\n",
            1,
            "no column is called \"bytes\"",
        ),
        ("size=9,key=0", "1,2\n1,2\n", 2, "2 fields where 10"),
    ] {
        let (_, end) = text(Format::Csv, columns, csv);
        let error = end.expect_err(csv);
        assert_eq!(error.at, Location::Line(line), "{csv}");
        assert!(error.to_string().contains(says), "{csv}: {error}");
    }
}

#[test]
fn a_truncated_last_line_is_reported() {
    let (found, end) = text(Format::Csv, "", "key,size,time\n1,2,3\n4,5");
    assert_eq!(
        (found.len(), end),
        (1, Err(error_at_line(3, TraceErrorKind::Cut)))
    );
    let own = "#pierhead-trace 1\n5 0000000000000001 6 7 1 hit\n6 0000000000000001 6 7 1 hi";
    for cut in 1..28 {
        let (found, end) = text(Format::Pierhead, "", &own[..own.len() - cut + 1]);
        assert_eq!(
            (found.len(), end),
            (1, Err(error_at_line(3, TraceErrorKind::Cut))),
            "{cut}"
        );
    }
}

#[test]
fn invalid_columns_are_refused() {
    for wrong in [
        "",
        "time",
        "time=",
        "colour=3",
        "header=perhaps",
        "delimiter=ab",
    ] {
        assert!(wrong.parse::<Columns>().is_err(), "{wrong}");
    }
}

#[test]
fn a_blob_has_one_key_in_all_repositories_of_the_registry_log() {
    let log = "\
,host,http.request.method,http.request.uri,http.request.useragent,http.response.status,http.response.written,timestamp
1,h,GET,v2/a/b/blobs/0c73319d,\"docker, new\",200,32.0,2017-06-20 00:00:03.589
2,h,GET,v2/c/d/blobs/0c73319d,curl,206,32.0,2017-06-20 00:00:05.000
3,h,GET,v2/c/d/manifests/1,curl,200,900.0,2017-06-20 00:00:05.000
4,h,GET,v2/a/b/manifests/1,curl,200,901.0,2017-06-20 00:00:05.000
5,h,HEAD,v2/a/b/manifests/1,curl,200,0.0,2017-06-20 00:00:05.000
6,h,GET,v2/a/b/blobs/9999,curl,404,70.0,2017-06-20 00:00:05.000
";
    let (found, end) = text(Format::IbmRegistry, "", log);
    let keys: Vec<u64> = found.iter().map(|(key, ..)| *key).collect();
    assert_eq!(
        (keys.len(), keys[0] == keys[1], keys[2] == keys[3]),
        (4, true, false)
    );
    assert_eq!((found[0].1, found[1].2 - found[0].2), (32, 2));
    assert_eq!(end.map(|notes| notes.skipped), Ok(2));
}

#[test]
fn only_gets_of_the_object_store_log_are_requests() {
    let log = "\
1219008 REST.PUT.OBJECT 8d4fcda3d675bac9 1056
1232488 REST.GET.OBJECT 95d363d3fbdc0b03 1168 0 1167
1233999 REST.GET.OBJECT 95d363d3fbdc0b03 1168 0 10
";
    let (found, end) = text(Format::IbmObjectStore, "", log);
    assert_eq!(
        found.iter().map(|it| (it.1, it.2)).collect::<Vec<_>>(),
        [(1168, 1232), (1168, 1233)]
    );
    assert_eq!(end.map(|notes| notes.skipped), Ok(1));
    let (_, end) = text(Format::IbmObjectStore, "", "1 REST.GET.OBJECT ab\n");
    assert_eq!(
        end,
        Err(error_at_line(
            1,
            TraceErrorKind::Fields {
                found: 3,
                expected: 4
            }
        ))
    );
    let (_, end) = text(Format::IbmObjectStore, "", "1 GET ab 5\n");
    assert!(end.is_err_and(|error| error.to_string().contains("verb is \"GET\"")));
}

#[test]
fn the_request_log_needs_its_header_and_may_repeat_it() {
    let line = "5 0000000000000001 6 7 1 hit\n";
    let header = pierhead_eviction::request_log::HEADER;
    let (found, end) = text(
        Format::Pierhead,
        "",
        &format!("{header}# x\n{line}{header}{line}"),
    );
    assert_eq!((found.len(), end.is_ok()), (2, true));
    let (_, end) = text(Format::Pierhead, "", line);
    assert_eq!(end, Err(error_at_line(1, TraceErrorKind::Header)));
    let (_, end) = text(Format::Pierhead, "", "#pierhead-trace 2\n");
    assert!(end.is_err_and(|error| error.to_string().contains("version \"2\"")));
}

#[test]
fn binary_data_and_overlong_lines_are_refused() {
    let endless = vec![b'1'; 70_000];
    for format in [
        Format::Csv,
        Format::IbmRegistry,
        Format::IbmObjectStore,
        Format::Pierhead,
        Format::Nginx,
        Format::Distribution,
    ] {
        let (_, end) = read(format, "", &endless);
        assert_eq!(
            end,
            Err(error_at_line(1, TraceErrorKind::Long { bound: 65_536 })),
            "{format}"
        );
        let (_, end) = read(format, "", b"\xff\xfe\n");
        assert_eq!(
            end,
            Err(error_at_line(1, TraceErrorKind::NotText)),
            "{format}"
        );
    }
}

#[test]
fn formats_are_detected_from_the_beginning_of_a_file() {
    let binary = record(0, 1, 5);
    for (name, head, format) in [
        ("t.csv", &b"key,size\n"[..], Format::Csv),
        ("t.bin", &binary, Format::OracleGeneral),
        ("t.oracleGeneral.bin", b"all text", Format::OracleGeneral),
        ("t.csv", b"#pierhead-trace 9\n", Format::Pierhead),
        (
            "t",
            b"1219008 REST.PUT.OBJECT 8d 1056\n",
            Format::IbmObjectStore,
        ),
        (
            "t.csv",
            b",id,http.request.uri,timestamp\n",
            Format::IbmRegistry,
        ),
        (
            "access.log",
            b"10.0.0.7 - - [23/Nov/2026:06:25:24 +0000] \"GET /v2/ HTTP/1.1\" 200 2 \"-\" \"curl\"\n",
            Format::Nginx,
        ),
        (
            "registry.log",
            b"10.0.0.7 - - [23/Nov/2026:06:25:24 +0000] \"GET /v2/ HTTP/1.1\" 200 2 \"\" \"curl\"\ntime=\"2026-11-23T06:25:24Z\" level=info msg=x http.request.uri=\"/v2/\"\n",
            Format::Distribution,
        ),
        (
            "registry.json",
            b"{\"http.request.uri\":\"/v2/\",\"level\":\"info\",\"msg\":\"response completed\",\"time\":\"\"}\n",
            Format::Distribution,
        ),
        ("t", b"", Format::Csv),
    ] {
        assert_eq!(Format::of(name, head), Ok(format), "{name}");
    }
    for (head, says) in [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "names no object",
        ),
        (
            "HashOwner,HashApp,HashFunction,Trigger,1,2\n",
            "has no sizes",
        ),
    ] {
        let refused = Format::of("t.csv", head.as_bytes()).map_err(|wrong| wrong.to_string());
        assert!(refused.is_err_and(|text| text.contains(says)), "{head}");
    }
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert!(
        "parquet"
            .parse::<Format>()
            .is_err_and(|error| error.to_string().contains("oracle-general"))
    );
}
