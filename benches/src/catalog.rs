//! Benchmark of questions to a large catalog: pages of duplicate groups, also while a scan writes, and the first output
//! of the commands that read the catalog.
//!
//! Owns the order of the measurements. `plan` decides what a catalog contains, `fixture` builds and keeps it, `page`
//! reads a page, `latency` measures pages, `writer` writes like a scan, `commands` runs `gristmill`, `report` prints
//! the tables and checks the thresholds.

mod commands;
pub(crate) mod fixture;
pub(crate) mod latency;
mod options;
pub(crate) mod page;
mod plan;
mod report;
pub(crate) mod writer;

use gristmill_store::{Store, catalog::SortBy};

use self::{fixture::Fixture, latency::PageLatencies, page::Position, writer::ScanWriter};
pub(crate) use options::Options;

use crate::{
    program::{data_dir, gristmill_program},
    scratch::Scratch,
};

pub(crate) fn run(options: &Options) -> Result<(), String> {
    let data = data_dir(options.data.data.as_deref())?;
    let gristmill = gristmill_program(options.data.gristmill.as_deref())?;
    println!("seed {}, {} repetitions of each page", options.data.seed, options.reps());
    let mut pages = Vec::new();
    let mut commands = None;
    for files in options.files() {
        let fixture = Fixture::get(files, options.data.seed, &data)?;
        let scratch = Scratch::new(&data)?;
        // Commands run before anything is written to the copy, as after a scan.
        let database = fixture.copy_to(scratch.path())?;
        if Some(files) == options.files().into_iter().max() {
            commands = Some(commands::measure(&gristmill, &database, files, options.command_reps(), scratch.path())?);
        }
        for writing in [false, true] {
            let table = measure_pages(&fixture, &database, options.reps(), writing)?;
            table.print();
            pages.push(table);
        }
    }
    if let Some(commands) = &commands {
        commands.print();
    }
    report::print_thresholds(&pages, commands.as_ref());
    Ok(())
}

/// Measures the pages of every order. While they are measured, a scan writes if `writing`.
fn measure_pages(
    fixture: &Fixture,
    database: &std::path::Path,
    reps: usize,
    writing: bool,
) -> Result<PageLatencies, String> {
    let store = Store::open(database).map_err(|error| error.to_string())?;
    let writer = if writing { Some(ScanWriter::start(&store, fixture.files)?) } else { None };
    let mut orders = Vec::new();
    for order in SortBy::ALL {
        let positions = Position::all(&store, order, fixture.duplicates.groups)?;
        let times = latency::measure(reps, positions.len(), |nth| {
            let position = &positions[nth];
            let (found, groups) = (page::page(&store, order, position)?, position.groups);
            // The writer adds groups, so no page is shorter than expected.
            let expected = if writing { found >= groups } else { found == groups };
            if expected { Ok(()) } else { Err(format!("{order:?}: {found} groups instead of {groups}")) }
        })?;
        orders.push((order, times));
    }
    let written = writer.map(ScanWriter::stop).transpose()?;
    Ok(PageLatencies { files: fixture.files, groups: fixture.duplicates.groups, written, orders })
}
