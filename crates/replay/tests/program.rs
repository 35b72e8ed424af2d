//! End-to-end tests of the program `pierhead-replay` on small valid and invalid traces.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Three trace files with the same seven requests, each in another format. One file is plain, and
/// two files are compressed.
const PULLS: [&str; 3] = ["pulls.csv", "pulls.oracleGeneral.bin.zst", "pulls.trace.gz"];

fn replay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pierhead-replay"));
    command.args(arguments);
    command.output().expect("it runs")
}

fn trace(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    text(&folder.join(name)).to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[track_caller]
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = replay(&[arguments, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    document["rows"].as_array().expect("rows").clone()
}

/// Runs the program, expects this exit code, and returns the error message.
#[track_caller]
fn fails(arguments: &[&str], code: i32) -> String {
    let output = replay(arguments);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

fn write(folder: &tempfile::TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).expect("it is written");
    path
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn results_match_those_computed_by_hand_in_every_format() {
    for name in PULLS {
        let row = &rows(&["--trace", &trace(name), "--policy", "lru", "--size", "10B"])[0];
        for (figure, expected) in [
            ("requests", 7),
            ("evictions", 4),
            ("upstream_bytes", 37),
            ("written_bytes", 26),
            ("passed", 1),
            ("above_cache", 1),
            ("size_bytes", 10),
        ] {
            assert_eq!(row[figure], expected, "{name}: {figure}");
        }
        let close = |figure: &str, expected: f64| {
            let found = row[figure].as_f64().expect("a number");
            assert!(
                (found - expected).abs() < 1e-4,
                "{name}: {figure} is {found}"
            );
        };
        close("object_miss_ratio", 6.0 / 7.0);
        close("byte_miss_ratio", 37.0 / 43.0);
        // The request log contains the cost of each request; the other formats use the assumed
        // cost.
        let own = name.starts_with("pulls.trace");
        close(
            "waiting_seconds",
            if own { 3.0 } else { 6.0 * 0.44 + 37e-6 * 0.94 },
        );
    }
}

#[test]
fn every_policy_is_replayed_at_every_size_in_the_given_order() {
    let found = rows(&[
        "--trace",
        &trace("pulls.csv"),
        "--size",
        "50%,100%,1GiB",
        "--jobs",
        "2",
    ]);
    let names = [
        "fifo",
        "lru",
        "lfu",
        "sieve",
        "s3-fifo",
        "arc",
        "w-tinylfu",
        "gdsf",
        "lhd",
        "cherry",
        "size-split",
        "learned",
        "belady",
        "belady-size",
    ];
    for (at, size) in ["50%", "100%", "1GiB"].into_iter().enumerate() {
        let part = &found[at * names.len()..][..names.len()];
        for name in names {
            let row = part.iter().find(|row| row["policy"] == name).expect(name);
            assert_eq!((&row["size"], &row["requests"]), (&size.into(), &7.into()));
            // If all keys fit into the cache, each key is missed once.
            if size == "1GiB" {
                assert_eq!(row["upstream_bytes"], 26, "{name}");
            }
        }
    }
    assert_eq!(found.len(), 3 * names.len());
    assert_eq!(found[0]["size_bytes"], 13);
}

#[test]
fn a_replay_is_reproducible_also_with_the_parameters_of_libcachesim() {
    for parameters in ["pierhead", "libcachesim"] {
        let arguments = [
            "--synthetic",
            "--requests",
            "3000",
            "--seed",
            "7,8",
            "--parameters",
            parameters,
            "--size",
            "1%",
        ];
        let ratios = |rows: Vec<Value>| -> Vec<Value> {
            rows.iter()
                .map(|row| row["byte_miss_ratio"].clone())
                .collect()
        };
        let (first, again) = (ratios(rows(&arguments)), ratios(rows(&arguments)));
        assert_eq!(first, again, "{parameters}");
        assert_eq!(first.len(), 28);
        assert_ne!(first[..14], first[14..], "two seeds are two workloads");
    }
}

#[test]
fn an_admission_keeps_refused_keys_out() {
    let common = ["--size", "1GiB", "--policy", "lru", "--trace"];
    let csv = trace("pulls.csv");
    let row = &rows(&[&common[..], &[&csv, "--admission", "second-hit"]].concat())[0];
    // With the admission filter `second-hit`, the first request for a key stores nothing, and the
    // second request stores the key.
    assert_eq!(
        (&row["passed"], &row["written_bytes"]),
        (&4.into(), &11.into())
    );
    let said = fails(
        &[&common[..], &[&csv, "--admission", "unknown"]].concat(),
        2,
    );
    assert!(said.contains("second-hit"), "{said}");
}

#[test]
fn files_are_separate_traces_unless_joined() {
    let (csv, own) = (trace("pulls.csv"), trace("pulls.trace.gz"));
    let common = ["--policy", "lru", "--size", "1GiB", "--trace", &csv, &own];
    assert_eq!(rows(&common).len(), 2);
    let joined = &rows(&[&common[..], &["--join"]].concat())[0];
    assert_eq!(
        (&joined["requests"], &joined["upstream_bytes"]),
        (&14.into(), &26.into())
    );
}

#[test]
fn the_table_has_a_row_and_the_chart_a_line_per_policy() {
    let folder = folder();
    let svg = folder.path().join("plot.svg");
    let csv = trace("pulls.csv");
    let output = replay(&[
        "--trace",
        &csv,
        "--policy",
        "lru,belady",
        "--size",
        "50%,100%",
        "--svg",
        text(&svg),
    ]);
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = table.lines().collect();
    assert!(
        lines[0].ends_with("7 requests for 4 objects of 26 B"),
        "{table}"
    );
    assert!(
        lines[1].starts_with("policy") && lines.len() == 6,
        "{table}"
    );
    assert!(
        lines[2].starts_with("lru") && lines[3].starts_with("belady"),
        "{table}"
    );
    let svg = std::fs::read_to_string(svg).expect("a plot");
    // Each policy has a line in each of two panels, and one line in the legend.
    assert_eq!(svg.matches("<polyline").count(), 2 * 2 + 2, "{svg}");
    for word in [
        "object miss ratio",
        "byte miss ratio",
        "cache size",
        ">lru<",
        "50 %",
        "</svg>",
    ] {
        assert!(svg.contains(word), "{word}");
    }
}

#[test]
fn a_truncated_trace_is_an_error_unless_cut_ok_is_given() {
    let folder = folder();
    let csv = std::fs::read(trace("pulls.csv")).expect("a trace");
    let cut = write(&folder, "cut.csv", &csv[..csv.len() - 4]);
    let said = fails(&["--trace", text(&cut)], 1);
    assert!(
        said.contains("cut.csv: line 8: the trace is truncated") && said.contains("--cut-ok"),
        "{said}"
    );
    let common = ["--policy", "lru", "--size", "10B", "--cut-ok", "--trace"];
    assert_eq!(
        rows(&[&common[..], &[text(&cut)]].concat())[0]["requests"],
        6
    );

    let records = [[1_u8; 24], [2; 24]].concat();
    let cut = write(&folder, "cut.oracleGeneral", &records[..47]);
    let said = fails(&["--trace", text(&cut)], 1);
    assert!(
        said.contains("cut.oracleGeneral: record 2: the trace is truncated"),
        "{said}"
    );
    assert_eq!(
        rows(&[&common[..], &[text(&cut)]].concat())[0]["requests"],
        1
    );

    for name in &PULLS[1..] {
        let packed = std::fs::read(trace(name)).expect("a trace");
        let cut = write(&folder, name, &packed[..packed.len() - 9]);
        let said = fails(&["--trace", text(&cut)], 1);
        assert!(said.contains(name) && said.contains("cut"), "{said}");
    }
}

#[test]
fn skipped_and_changed_requests_are_reported() {
    let folder = folder();
    let odd = b"time,key,size\n9,1,5\n3,2,5\n10,3,0\n11,4,1099511627776\n11,4,1099511627776\n";
    let odd = write(&folder, "odd.csv", odd);
    let output = replay(&["--trace", text(&odd), "--policy", "lru", "--size", "1MiB"]);
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(
        said.contains("odd.csv: 1 requests of size zero were left out"),
        "{said}"
    );
    assert!(
        said.contains("odd.csv: 1 requests were earlier than the one before"),
        "{said}"
    );
    let row = &rows(&["--trace", text(&odd), "--policy", "lru", "--size", "1MiB"])[0];
    assert_eq!(
        (&row["requests"], &row["above_cache"]),
        (&4.into(), &2.into())
    );
    assert_eq!(row["upstream_bytes"], 10 + (2_u64 << 40));
}

#[test]
fn errors_about_traces_and_flags_name_the_fix() {
    let folder = folder();
    let llm = write(
        &folder,
        "llm.csv",
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\n",
    );
    let wrong = write(&folder, "wrong.csv", b"time,key,size\n1,2,three\n");
    let bare = write(&folder, "bare.csv", b"1,2,3\n");
    let empty = write(&folder, "empty.csv", b"");
    let csv = trace("pulls.csv");
    for (arguments, code, says) in [
        (&["--trace", "/nonexistent"][..], 1, "/nonexistent"),
        (&["--trace", text(&llm)], 1, "names no object"),
        (
            &["--trace", text(&wrong)],
            1,
            "wrong.csv: line 2: size is \"three\"",
        ),
        (&["--trace", text(&bare)], 1, "--csv time=0,key=1,size=2"),
        (&["--trace", text(&empty)], 1, "no request in it"),
        (
            &["--trace", &csv, "--format", "pierhead"],
            1,
            "not a pierhead request log",
        ),
        (
            &["--trace", &csv, "--format", "parquet"],
            2,
            "write one of oracle-general",
        ),
        (
            &["--trace", &csv, "--policy", "lrv"],
            2,
            "write one of fifo, lru",
        ),
        (&["--trace", &csv, "--size", "0%"], 2, "is not a share"),
        (
            &["--trace", &csv, "--csv", "colour=2"],
            2,
            "is not a column",
        ),
        (&[], 2, "--trace"),
        (&["--trace", &csv, "--requests", "9"], 2, "--requests"),
        (&["--synthetic", "--requests", "0"], 2, "--requests"),
        (
            &[
                "--trace",
                &csv,
                "--seed",
                "1,2",
                "--save-state",
                "/nonexistent",
            ],
            2,
            "--save-state keeps one state",
        ),
    ] {
        let said = fails(arguments, code);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}

#[test]
fn columns_of_the_command_line_are_used() {
    let folder = folder();
    let bare = write(&folder, "bare.txt", b"6;x;0\n6;x;1\n");
    let row = &rows(&[
        "--trace",
        text(&bare),
        "--csv",
        "size=0,key=1,time=2,delimiter=;",
        "--policy",
        "lru",
        "--size",
        "100%",
    ])[0];
    assert_eq!(
        (&row["requests"], &row["upstream_bytes"]),
        (&2.into(), &6.into())
    );
}

#[test]
fn a_saved_state_is_restored_and_an_invalid_one_is_named() {
    let (folder, csv) = (folder(), trace("pulls.csv"));
    let states = folder.path().join("states");
    let common = ["--trace", &csv, "--size", "1GiB", "--policy"];
    rows(&[&common[..], &["all", "--save-state", text(&states)]].concat());
    let restored = rows(&[&common[..], &["all", "--restore-state", text(&states)]].concat());
    for row in restored {
        let foresees = row["policy"]
            .as_str()
            .is_some_and(|it| it.starts_with("belady"));
        let missed = if foresees { 26 } else { 0 };
        assert_eq!(row["upstream_bytes"], missed, "{}", row["policy"]);
    }
    let lru = states.join("lru-1073741824.state");
    let mut state = std::fs::read(&lru).expect("a state");
    state[4] = 9;
    std::fs::write(&lru, &state).expect("it is written");
    let restore = [&common[..], &["lru", "--restore-state", text(&states)]].concat();
    let said = fails(&restore, 1);
    assert!(
        said.contains("lru-1073741824.state") && said.contains("version 9"),
        "{said}"
    );
    std::fs::write(&lru, &state[..7]).expect("it is written");
    assert!(fails(&restore, 1).contains("truncated"));
}

#[test]
fn an_exported_trace_gives_the_same_results() {
    let folder = folder();
    let out = folder.path().join("out.oracleGeneral.bin");
    let figures = |row: &Value| (row["byte_miss_ratio"].clone(), row["evictions"].clone());
    let common = ["--policy", "belady", "--size", "10B", "--trace"];
    let csv = trace("pulls.csv");
    let from = rows(&[&common[..], &[&csv, "--export", text(&out)]].concat());
    let back = rows(&[&common[..], &[text(&out)]].concat());
    assert_eq!(figures(&from[0]), figures(&back[0]));
    let bytes = std::fs::read(&out).expect("a trace");
    // The key of the first request occurs again in the third request, counted from 1. The key of
    // the second request never occurs again.
    assert_eq!(
        (&bytes[16..24], &bytes[40..48]),
        (&3_i64.to_le_bytes()[..], &[0xff; 8][..])
    );
}

#[test]
fn an_access_log_of_nginx_ends_with_a_verdict() {
    let folder = folder();
    let line = |minute: u32, blob: char, end: &str| {
        let hash = blob.to_string().repeat(64);
        format!(
            "10.0.0.7 - - [23/Nov/2026:06:{minute:02}:00 +0000] \"GET /v2/team/app/blobs/sha256:{hash}?ns=docker.io HTTP/1.1\" {end}\n"
        )
    };
    // Every second request is for the same blob, and all other requests are for distinct blobs. If
    // a policy evicts the frequent blob, clients have to wait for this blob again.
    let mut log = line(0, 'a', "206 5 \"-\" \"containerd/2.4\" 0.1");
    for (minute, other) in ('b'..='f').enumerate() {
        let minute = u32::try_from(minute).expect("few");
        log += &line(2 * minute, 'a', "200 6000000 \"-\" \"containerd/2.4\" 4.0");
        log += &line(
            2 * minute + 1,
            other,
            "200 1000000 \"-\" \"containerd/2.4\" 1.0",
        );
    }
    let log = write(&folder, "access.log", log.as_bytes());
    let arguments = [
        "--trace",
        text(&log),
        "--size",
        "8MB",
        "--policy",
        "fifo,lru",
        "--current",
        "fifo",
    ];
    let row = &rows(&arguments)[0];
    assert_eq!(row["requests"], 10);
    let output = replay(&arguments);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("verdict at 8MB: lru waits ")
            && said.contains("less than fifo, the current policy"),
        "{said}"
    );
    let json = replay(&[&arguments[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(json["verdicts"][0]["best"], "lru", "{json}");
    assert_eq!(json["traces"][0]["left_out_other"], 1, "{json}");
}

#[test]
fn a_log_of_distribution_is_replayed_in_both_of_its_formats() {
    let folder = folder();
    let hash = |blob: char| blob.to_string().repeat(64);
    // CNCF Distribution also writes each request in the Apache log format. That line does not
    // count.
    let text_line = |second: u32, blob: char, status: u32| {
        let (target, time) = (
            format!("/v2/team/app/blobs/sha256:{}", hash(blob)),
            format!("2026-11-23T06:25:{second:02}.5Z"),
        );
        format!(
            "10.0.0.7 - - [23/Nov/2026:06:25:{second:02} +0000] \"GET {target} HTTP/1.1\" {status} 6 \"\" \"docker\"\n\
             time=\"{time}\" level=info msg=\"response completed\" go.version=go1.24 http.request.method=GET \
             http.request.uri=\"{target}\" http.response.duration=1.5s http.response.status={status} http.response.written=6\n"
        )
    };
    let json_line = |second: u32, blob: char, status: u32| {
        format!(
            "{{\"go.version\":\"go1.24\",\"http.request.method\":\"GET\",\"http.request.uri\":\"/v2/team/app/blobs/sha256:{}\",\
             \"http.response.duration\":\"1.5s\",\"http.response.status\":{status},\"http.response.written\":6,\
             \"level\":\"info\",\"msg\":\"response completed\",\"time\":\"2026-11-23T06:25:{second:02}Z\"}}\n",
            hash(blob)
        )
    };
    let requests = [
        (0, 'a', 200),
        (1, 'b', 200),
        (2, 'a', 200),
        (3, 'c', 404),
        (4, 'b', 200),
    ];
    let texts: String = requests
        .iter()
        .map(|it| text_line(it.0, it.1, it.2))
        .collect();
    let jsons: String = requests
        .iter()
        .map(|it| json_line(it.0, it.1, it.2))
        .collect();
    for (name, log) in [("registry.log", texts), ("registry.json", jsons)] {
        let log = write(&folder, name, log.as_bytes());
        let arguments = [
            "--trace",
            text(&log),
            "--size",
            "1kB",
            "--policy",
            "lru",
            "--json",
        ];
        let output = replay(&arguments);
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let (row, trace) = (&json["rows"][0], &json["traces"][0]);
        assert_eq!(row["requests"], 4, "{name}: {json}");
        assert_eq!(row["upstream_bytes"], 12, "{name}: {json}");
        assert_eq!(trace["objects"], 2, "{name}: {json}");
        assert_eq!(trace["seconds"], 4, "{name}: {json}");
        assert_eq!(trace["left_out_other"], 1, "{name}: {json}");
    }
}

#[test]
fn a_quiet_replay_prints_results_and_warnings_only() {
    let folder = folder();
    let requests = "key,size\na,6\nempty,0\nb,5\n";
    let csv = write(&folder, "pulls.csv", requests.as_bytes());
    let arguments = ["--trace", text(&csv), "--size", "10B", "--policy", "lru"];
    let loud = replay(&arguments);
    let note = String::from_utf8_lossy(&loud.stderr).into_owned();
    assert!(note.contains("1 requests of size zero"), "{note}");
    let without_rate = |stdout: &[u8]| {
        let text = String::from_utf8_lossy(stdout).into_owned();
        let cells = |line: &str| {
            line.split_whitespace()
                .take(4)
                .collect::<Vec<_>>()
                .join(" ")
        };
        text.lines().map(cells).collect::<Vec<_>>()
    };
    for flag in ["--quiet", "-q"] {
        let quiet = replay(&[&arguments[..], &[flag]].concat());
        assert!(quiet.status.success());
        assert_eq!(String::from_utf8_lossy(&quiet.stderr), "", "{flag}");
        assert_eq!(without_rate(&quiet.stdout), without_rate(&loud.stdout));
    }
    // A truncated trace stays a warning.
    let csv = std::fs::read(trace("pulls.csv")).expect("a trace");
    let cut = write(&folder, "cut.csv", &csv[..csv.len() - 4]);
    let cut = replay(&[
        "--trace",
        text(&cut),
        "--size",
        "10B",
        "--cut-ok",
        "--quiet",
    ]);
    let warning = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert!(warning.contains("truncated"), "{warning}");
}

#[test]
fn a_missing_older_half_of_a_request_log_is_an_error_with_a_fix() {
    let folder = folder();
    let half = write(&folder, "pulls.trace", b"");
    let older = folder.path().join("pulls.trace.1");
    let said = fails(&["--trace", text(&older), text(&half), "--join"], 1);
    assert!(said.contains("no older half yet: leave it out"), "{said}");
    let other = folder.path().join("other.trace.1");
    let said = fails(&["--trace", text(&other)], 1);
    assert!(said.contains("No such file"), "{said}");
}

#[test]
fn the_help_explains_every_flag_and_keeps_its_columns() {
    let output = replay(&["--help"]);
    let help = String::from_utf8(output.stdout).expect("UTF-8");
    for taught in [
        "--trace",
        "--policy",
        "--size",
        "--svg",
        "--parameters",
        "oracle-general",
        "size zero",
        "Examples:",
    ] {
        assert!(help.contains(taught), "{taught}");
    }
    // In longer lines, clap would wrap the text and so break the columns.
    let (_, formats) = help.split_once("Formats (").expect("the formats");
    for line in formats.lines() {
        assert!(line.chars().count() <= 98, "{line}");
    }
    assert!(
        formats.contains("\n                    is the cost\n"),
        "{formats}"
    );
}

#[test]
fn a_size_without_a_unit_is_refused() {
    let message = fails(&["--synthetic", "--size", "10"], 2);
    assert!(message.starts_with("error: "), "{message}");
    assert!(message.contains("10GiB or 10B"), "{message}");
}
