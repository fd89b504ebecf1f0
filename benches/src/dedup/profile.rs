//! Contents of the generated trees: four profiles, each with cases that make finding duplicates hard or slow.
//!
//! Owns sizes, contents, names and folders. `TreeWriter` writes them to disk.

use std::io;

use clap::ValueEnum;
use fastrand::Rng;

use super::{
    expected::Recipe,
    tree::{TreeSpec, TreeWriter},
};
use crate::random;

const MIB: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Profile {
    /// 200,000 files of 0 to 16 KiB in 10,000 folders, 30 % of them with duplicates. Every size is shared by many
    /// files; families of files share long heads, and some members differ in one byte.
    Small,
    /// 60 files of 20 to 200 MiB: groups of duplicates, and files of one size that differ in the first, middle or last
    /// byte.
    Big,
    /// 20,000 files of 50 KiB to 4 MiB that start like the JPEG files of five cameras, 20 % of them with duplicates.
    Photos,
    /// 1,000,000 files of 0 to 600 bytes in 40,000 folders, 20 % of them with duplicates, for the time and memory per
    /// file.
    Million,
}

impl Profile {
    pub(super) fn write(self, spec: &TreeSpec, writer: &mut TreeWriter) -> io::Result<()> {
        // The streams of contents are numbered from 0 upwards, those of choices from the maximum downwards.
        let choices = random::stream(spec.seed, u64::MAX - self as u64);
        let write = match self {
            Profile::Small => small,
            Profile::Big => big,
            Profile::Photos => photos,
            Profile::Million => million,
        };
        write(spec.seed, choices, spec.scale, writer)
    }
}

/// Returns `size` bytes that are unique to this kind and number.
fn content(seed: u64, kind: u8, number: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    random::stream(seed, u64::from(kind) << 48 | number).fill(&mut bytes);
    bytes
}

/// Kinds of bytes. Each kind numbers its contents separately.
const OWN: u8 = 0;
const FAMILY: u8 = 1;
const TAIL: u8 = 2;
const HEAD: u8 = 3;
const GROUP: u8 = 4;
const NEAR: u8 = 5;
const SAME_SIZE: u8 = 6;

fn scaled(number: f64, scale: f64) -> usize {
    ((number * scale) as usize).max(1)
}

/// Creates nested folders, at most nine levels deep. The parent of each is one of the `reach` newest folders, or any
/// folder if that parent is on the ninth level.
fn nested(count: usize, reach: usize, choices: &mut Rng, writer: &TreeWriter) -> io::Result<Vec<String>> {
    let mut folders = vec![(String::new(), 0)];
    for number in 0..count {
        let mut nth = choices.usize(folders.len().saturating_sub(reach)..folders.len());
        while folders[nth].1 == 9 {
            nth = choices.usize(..folders.len());
        }
        let (parent, depth) = &folders[nth];
        let folder = (format!("{parent}d{number:05}/"), depth + 1);
        writer.folder(&folder.0)?;
        folders.push(folder);
    }
    Ok(folders.into_iter().skip(1).map(|(path, _)| path).collect())
}

/// Sizes of families of small files, and number of families of each size.
const FAMILY_SIZES: [usize; 8] = [700, 2_048, 4_096, 4_500, 6_000, 9_000, 12_288, 16_384];
const FAMILIES: usize = 6;

/// Sizes of a fifth of all small files: powers of two and their neighbours, and round numbers.
const POPULAR_SIZES: [usize; 27] = [
    64, 100, 128, 256, 300, 512, 777, 1_000, 1_024, 1_500, 2_000, 2_048, 3_000, 4_000, 4_095, 4_096, 4_097, 5_000,
    6_000, 8_000, 8_192, 10_000, 12_000, 12_288, 16_000, 16_383, 16_384,
];

const EXTENSIONS: [&str; 10] = ["txt", "c", "h", "json", "xml", "png", "js", "md", "o", "html"];

fn small(seed: u64, mut choices: Rng, scale: f64, writer: &mut TreeWriter) -> io::Result<()> {
    let files = scaled(200_000.0, scale);
    let folders = nested(scaled(10_000.0, scale), 3_000, &mut choices, writer)?;
    let families: Vec<Vec<u8>> = (0..FAMILY_SIZES.len() * FAMILIES)
        .map(|nth| content(seed, FAMILY, nth as u64, FAMILY_SIZES[nth / FAMILIES]))
        .collect();
    let mut number = 0;
    while number < files {
        let (bytes, recipe) = small_content(seed, &mut choices, &families, number as u64);
        let has_copies = number < files * 3 / 10 && !bytes.is_empty();
        let copies = if has_copies { small_copies(&mut choices) } else { 1 }.min(files - number);
        // In half of the groups all files have the same name, as in copied folders.
        let same_name = choices.f64() < 0.5;
        let mut used = Vec::new();
        for nth in number..number + copies {
            let folder = choices.usize(..folders.len());
            let named_after = if same_name && !used.contains(&folder) { number } else { nth };
            used.push(folder);
            let (folder, extension) = (&folders[folder], EXTENSIONS[named_after % EXTENSIONS.len()]);
            writer.file(format!("{folder}f{named_after:06}.{extension}"), &bytes, recipe, nth as u64)?;
        }
        number += copies;
    }
    Ok(())
}

fn small_content(seed: u64, choices: &mut Rng, families: &[Vec<u8>], number: u64) -> (Vec<u8>, Recipe) {
    let own = |size| (content(seed, OWN, number, size), Recipe("own", [number, 0, 0]));
    let kind = choices.f64();
    if kind < 0.005 {
        return own(0);
    }
    if kind < 0.22 {
        let family = choices.usize(..families.len());
        let mut bytes = families[family].clone();
        let size = bytes.len();
        if kind < 0.12 {
            // One byte is changed. Some of these files are equal by chance; they then have equal recipes.
            let anywhere = choices.usize(..size);
            let at = [0, size / 2, size - 1, anywhere][choices.usize(..4)];
            let change = choices.usize(1..256);
            bytes[at] ^= change as u8;
            return (bytes, Recipe("near", [family as u64, at as u64, change as u64]));
        }
        let shared = size * 3 / 4;
        bytes[shared..].copy_from_slice(&content(seed, TAIL, number, size - shared));
        return (bytes, Recipe("head", [number, 0, 0]));
    }
    if kind < 0.42 {
        return own(POPULAR_SIZES[choices.usize(..POPULAR_SIZES.len())]);
    }
    own(1 + (16_384.0 * choices.f64().powf(1.7)) as usize % 16_384)
}

fn small_copies(choices: &mut Rng) -> usize {
    match choices.f64() {
        ..0.60 => 2,
        ..0.75 => 3,
        ..0.90 => choices.usize(4..9),
        ..0.985 => choices.usize(9..51),
        _ => choices.usize(51..401),
    }
}

/// Below scale 1 the files are smaller; above it there are more of them.
fn big(seed: u64, mut choices: Rng, scale: f64, writer: &mut TreeWriter) -> io::Result<()> {
    let shrunk = |bytes: usize| (bytes as f64 * scale.min(1.0)) as usize;
    let mut size = || {
        let mib = 20.0 + 90.0 * choices.f64().powf(2.2);
        shrunk((mib * MIB as f64) as usize + choices.usize(..4_096))
    };
    for folder in ["video", "iso", "backup/video", "backup/old", "near"] {
        writer.folder(folder)?;
    }
    let put = |writer: &mut TreeWriter, place: &str, bytes: &[u8], recipe| {
        let number = writer.files();
        writer.file(format!("{place}-{number:03}.bin"), bytes, recipe, number)
    };
    for round in 0..scale.round().max(1.0) as u64 {
        for (nth, copies) in [2, 2, 2, 2, 2, 3, 3, 4].into_iter().enumerate() {
            let number = round << 8 | nth as u64;
            let bytes = content(seed, GROUP, number, if nth == 0 { shrunk(200 * MIB) } else { size() });
            for folder in &["video/grp", "backup/video/grp", "backup/old/grp", "iso/grp"][..copies] {
                put(writer, folder, &bytes, Recipe("group", [number, 0, 0]))?;
            }
        }
        for (nth, mib) in [40, 96, 64].into_iter().enumerate() {
            let number = round << 8 | nth as u64;
            let size = shrunk(mib * MIB) + 123 * nth;
            let mut bytes = content(seed, NEAR, number, size);
            put(writer, "near/base", &bytes, Recipe("base", [number, 0, 0]))?;
            put(writer, "backup/old/base-copy", &bytes, Recipe("base", [number, 0, 0]))?;
            let places = [0, size / 2, size - 1, size * 3 / 4];
            for (at, label) in places.into_iter().zip(["first", "middle", "last", "three-quarters"]) {
                bytes[at] ^= 0x55;
                put(writer, &format!("near/{label}"), &bytes, Recipe("near", [number, 1, at as u64]))?;
                bytes[at] ^= 0x55;
            }
        }
        for nth in 0..6 {
            let number = round << 8 | nth;
            let bytes = content(seed, SAME_SIZE, number, shrunk(50 * MIB));
            put(writer, "iso/samesize", &bytes, Recipe("same size", [number, 0, 0]))?;
        }
        for nth in 0..16 {
            let number = round << 8 | nth;
            let bytes = content(seed, OWN, number, size() + 5_000 + nth as usize);
            put(writer, "video/uniq", &bytes, Recipe("own", [number, 0, 0]))?;
        }
    }
    Ok(())
}

/// The head that files of one camera share is longer than the first block that many programs read.
const JPEG: &[u8] = b"\xff\xd8\xff\xe1\x1c\x45Exif\0\0MM\0*\0\0\0\x08";
const CAMERAS: u64 = 5;

fn photos(seed: u64, mut choices: Rng, scale: f64, writer: &mut TreeWriter) -> io::Result<()> {
    let files = scaled(20_000.0, scale);
    let heads: Vec<Vec<u8>> = (0..CAMERAS).map(|camera| [JPEG, &content(seed, HEAD, camera, 1_200)].concat()).collect();
    let years = 2008..2024;
    let taken = years.clone().flat_map(|year| {
        let months = (1..=12).flat_map(move |month| ["camera", "phone"].map(|kind| (month, kind)));
        months.map(move |(month, kind)| format!("{year}/{month:02}/{kind}"))
    });
    let backups = ["laptop", "nas", "usb stick"].into_iter();
    let backups = backups.flat_map(|place| years.clone().map(move |year| format!("backup/{place}/{year}")));
    let folders: Vec<String> = taken.chain(backups).collect();
    folders.iter().try_for_each(|folder| writer.folder(folder))?;
    let mut number = 0;
    while number < files {
        let mut size =
            (330_000.0 * (0.75 * random::normal(&mut choices)).exp()).clamp(50.0 * 1_024.0, 4.0 * MIB as f64) as usize;
        if choices.f64() < 0.04 {
            size = 65_536 * choices.usize(1..17);
        }
        let mut bytes = content(seed, OWN, number as u64, size);
        let head = &heads[choices.usize(..heads.len())];
        bytes[..head.len()].copy_from_slice(head);
        let copies = if number >= files / 5 { 1 } else { photo_copies(&mut choices) };
        for nth in (number..files).take(copies) {
            let folder = &folders[choices.usize(..folders.len())];
            let recipe = Recipe("photo", [number as u64, 0, 0]);
            writer.file(format!("{folder}/IMG_{nth:05}.JPG"), &bytes, recipe, nth as u64 * 37)?;
        }
        number += copies;
    }
    Ok(())
}

fn photo_copies(choices: &mut Rng) -> usize {
    match choices.f64() {
        ..0.75 => 2,
        ..0.92 => 3,
        _ => choices.usize(4..9),
    }
}

fn million(seed: u64, mut choices: Rng, scale: f64, writer: &mut TreeWriter) -> io::Result<()> {
    let files = scaled(1_000_000.0, scale);
    let folders = nested(scaled(40_000.0, scale), 3_000, &mut choices, writer)?;
    let mut number = 0;
    while number < files {
        let bytes = content(seed, OWN, number as u64, choices.usize(..601));
        // Duplicates are spread evenly at every scale: one content in ten has two or three files.
        let copies = if choices.f64() < 0.1 { choices.usize(2..4) } else { 1 };
        for nth in (number..files).take(copies) {
            let folder = &folders[choices.usize(..folders.len())];
            writer.file(format!("{folder}m{nth:07}"), &bytes, Recipe("own", [number as u64, 0, 0]), nth as u64)?;
        }
        number += copies;
    }
    Ok(())
}
