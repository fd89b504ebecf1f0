//! Benchmark of the HTTP API: group pages over HTTP against the query itself, also while a scan writes, and requests
//! per second against a bare axum handler.
//!
//! Owns the order of the measurements and the thresholds. `client` sends requests, `servers` starts `gristmill serve` and
//! the bare server. Both are processes of their own.

mod client;
mod servers;

use std::time::Duration;

use clap::Args;
use gristmill_store::{Store, catalog::SortBy};

use self::{
    client::{Client, Load},
    servers::Running,
};
use crate::{
    catalog::{
        fixture::Fixture,
        latency::{self, Latencies},
        page::{self, Position},
        writer::ScanWriter,
    },
    comparison::{median, print_table},
    options::{DataOptions, at_least},
    program::{data_dir, gristmill_program},
    scratch::Scratch,
    threshold::{
        self,
        Limit::{AtLeast, AtMost},
        Threshold,
    },
};

pub(crate) use self::servers::bare;

const NOTES: &str = "\
Catalogs of 10^4, 10^5 and 10^6 files, and with --quick only 10^4. They are shared with `bench catalog`.

Examples:
  cargo xtask bench server
  cargo xtask bench server --files 1000000 --reps 1000";

/// Maximum difference between a page over HTTP and the query itself at the median, and maximum p99 of a page, in ms.
const MAX_OVERHEAD_MS: f64 = 1.0;
const MAX_P99_MS: f64 = 8.0;

/// Minimum rate of `/health` as a share of a bare handler's.
const MIN_RATE: f64 = 0.7;

/// Connections that send requests at the same time.
const CONNECTIONS: usize = 16;

#[derive(Clone, Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct Options {
    /// Numbers of files, separated by commas, 1000 or more [default: 10000,100000,1000000]
    #[arg(long, value_name = "NS", value_delimiter = ',', value_parser = at_least(1_000))]
    files: Option<Vec<u64>>,
    /// Repetitions of each page [default: 300, or 20 with --quick]
    #[arg(long, value_name = "N", value_parser = at_least(1))]
    reps: Option<u64>,
    /// Check that everything works: a small catalog, few repetitions
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    data: DataOptions,
}

/// Latencies of pages at each position, in one order.
struct Pages {
    files: u64,
    order: SortBy,
    writing: bool,
    /// At each position: the query itself, then over HTTP.
    latencies: Vec<Latencies>,
}

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let data = data_dir(options.data.data.as_deref())?;
    let gristmill = gristmill_program(options.data.gristmill.as_deref())?;
    let default = || if options.quick { vec![10_000] } else { vec![10_000, 100_000, 1_000_000] };
    let reps = options.reps.map_or(if options.quick { 20 } else { 300 }, |reps| reps as usize);
    let (mut pages, mut thresholds) = (Vec::new(), Vec::new());
    for files in options.files.clone().unwrap_or_else(default) {
        let fixture = Fixture::get(files, options.data.seed, &data)?;
        let scratch = Scratch::new(&data)?;
        let database = fixture.copy_to(scratch.path())?;
        let server = Running::gristmill(&gristmill, &database, scratch.path())?;
        for writing in [false, true] {
            pages.extend(measure_pages(&fixture, &database, &server, reps, writing)?);
        }
        thresholds.extend(measure_rates(&server, files, scratch.path(), options.quick)?);
    }
    print_pages(&pages);
    let largest = pages.iter().map(|page| page.files).max();
    let of_pages = pages.iter().filter(|page| Some(page.files) == largest).flat_map(Pages::thresholds);
    threshold::print(of_pages.chain(thresholds));
    Ok(())
}

fn measure_pages(
    fixture: &Fixture,
    database: &std::path::Path,
    server: &Running,
    reps: usize,
    writing: bool,
) -> Result<Vec<Pages>, String> {
    let store = Store::open(database).map_err(|error| error.to_string())?;
    let mut client = Client::connect(server)?;
    let writer = if writing { Some(ScanWriter::start(&store, fixture.files)?) } else { None };
    let mut all = Vec::new();
    for order in SortBy::ALL {
        let positions = Position::all(&store, order, fixture.duplicates.groups)?;
        let paths: Vec<String> = positions.iter().map(|position| page_path(order, position)).collect();
        // The query and the request of a position follow each other.
        let latencies = latency::measure(reps, positions.len() * 2, |nth| {
            let position = &positions[nth / 2];
            let found = match nth % 2 {
                0 => page::page(&store, order, position)?,
                _ => client.get(&paths[nth / 2])?.matches("\"group_key\"").count(),
            };
            let is_right = if writing { found >= position.groups } else { found == position.groups };
            if is_right { Ok(()) } else { Err(format!("{order:?}: {found} groups instead of {}", position.groups)) }
        })?;
        all.push(Pages { files: fixture.files, order, writing, latencies });
    }
    writer.map(ScanWriter::stop).transpose()?;
    Ok(all)
}

fn page_path(order: SortBy, position: &Position) -> String {
    let cursor = position.after.as_ref().map_or_else(String::new, |cursor| format!("&cursor={cursor}"));
    let order = page::name(order);
    format!("/api/v1/duplicates/groups?sort={order}&min_count=2&min_size=1&limit=200{cursor}")
}

/// Measures requests per second of `/health`, of a bare handler, and of a page, alternately.
fn measure_rates(
    server: &Running,
    files: u64,
    scratch: &std::path::Path,
    quick: bool,
) -> Result<Vec<Threshold>, String> {
    let bare = Running::bare(scratch)?;
    let page = "/api/v1/duplicates/groups?sort=reclaimable&min_count=2&min_size=1&limit=200";
    let (time, reps) = if quick { (Duration::from_millis(200), 1) } else { (Duration::from_secs(2), 3) };
    let candidates = [("health", server, "/health"), ("bare axum", &bare, "/health"), ("page of 200", server, page)];
    let mut loads: Vec<Vec<Load>> = candidates.iter().map(|_| Vec::new()).collect();
    for _ in 0..reps {
        for ((_, server, path), loads) in candidates.iter().zip(&mut loads) {
            loads.push(client::load(server, path, CONNECTIONS, time)?);
        }
    }
    println!("\n{CONNECTIONS} connections ({files} files)\n");
    let rates: Vec<f64> =
        loads.iter().map(|loads| median(&loads.iter().map(|load| load.per_second).collect::<Vec<_>>())).collect();
    let rows = candidates.iter().zip(&loads).zip(&rates).map(|(((name, ..), loads), rate)| {
        let p99 = median(&loads.iter().map(|load| load.p99_ms).collect::<Vec<_>>());
        vec![(*name).to_owned(), format!("{rate:.0}"), format!("{p99:.2}")]
    });
    print_table(&["", "requests per second", "p99 ms"], rows);
    Ok(vec![Threshold {
        what: format!("/health, {files} files: × a bare axum handler"),
        value: Some(rates[0] / rates[1]),
        limit: AtLeast(MIN_RATE),
    }])
}

impl Pages {
    /// Returns the latencies of the query and of the request at each position.
    fn pairs(&self) -> impl Iterator<Item = (&'static str, &Latencies, &Latencies)> {
        let pairs = self.latencies.chunks_exact(2);
        Position::NAMES.into_iter().zip(pairs).map(|(name, pair)| (name, &pair[0], &pair[1]))
    }

    fn thresholds(&self) -> Vec<Threshold> {
        let what = format!("{}{}", page::name(self.order), if self.writing { " while a scan writes" } else { "" });
        let worst = |value: fn(&Latencies, &Latencies) -> f64| {
            self.pairs().map(|(_, query, http)| value(query, http)).fold(f64::NEG_INFINITY, f64::max)
        };
        let overhead = Threshold {
            what: format!("page by {what}, {} files: ms above the query, p50", self.files),
            value: Some(worst(|query, http| http.percentile(50.0) - query.percentile(50.0))),
            limit: AtMost(MAX_OVERHEAD_MS),
        };
        let p99 = Threshold {
            what: format!("page by {what}, {} files: ms over HTTP, p99", self.files),
            value: Some(worst(|_, http| http.p99())),
            limit: AtMost(MAX_P99_MS),
        };
        vec![overhead, p99]
    }
}

fn print_pages(pages: &[Pages]) {
    println!("\npages of 200 groups, ms\n");
    let rows = pages.iter().flat_map(|page| {
        page.pairs().map(|(position, query, http)| {
            let numbers = [query.percentile(50.0), http.percentile(50.0), query.p99(), http.p99()];
            let what = format!("{} files, {}", page.files, page::name(page.order));
            let writing = if page.writing { "writing" } else { "" };
            [what, position.to_owned(), writing.to_owned()]
                .into_iter()
                .chain(numbers.map(|number| format!("{number:.2}")))
                .collect::<Vec<_>>()
        })
    });
    print_table(&["", "page", "a scan", "query p50", "HTTP p50", "query p99", "HTTP p99"], rows);
}
