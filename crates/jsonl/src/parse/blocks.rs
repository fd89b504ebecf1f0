//! Reads a block: finds its rows, and where in the file each is.

use super::{BYTE_ORDER_MARK, ParseOptions, Parser};
use crate::block::Block;
use crate::document::Elements;
use crate::languages;
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{BadLine, Line, ParsedBlock, Span};

/// Reads all lines of a block. `rows` are of a block before; they make room.
pub(crate) fn parse(block: Block, options: &ParseOptions, mut parsed: ParsedBlock) -> ParsedBlock {
    parsed.clear();
    parsed.keys.clone_from(&options.keys);
    let text = block.bytes();
    if let Some(limit) = block.too_long {
        let column = block.elements.as_ref().map_or(0, |elements| elements.column as u32);
        let line = Line { number: 0, column, span: Span::new(0, text.len()) };
        parsed.bad.push(BadLine { line, at: limit, reason: ParseErrorKind::TooLong(limit) });
        parsed.lines = block.elements.map_or(1, |elements| elements.lines as u32);
        parsed.text = block.buffer;
        return parsed;
    }
    if let Some(elements) = &block.elements {
        let lines = lines_of(text, elements);
        if options.languages.is_empty() {
            Parser::new(options, text, &mut parsed).parse_elements(&lines);
        } else {
            parse_localised(text, &lines, options, &mut parsed);
        }
        locate(text, &mut parsed);
        parsed.lines = elements.lines as u32;
        let place =
            if options.languages.is_empty() { &mut parsed.text } else { parsed.original.insert(Vec::new()) };
        *place = block.buffer;
        return parsed;
    }
    let skipped = if block.is_first && text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    if options.languages.is_empty() {
        Parser::new(options, text, &mut parsed).parse_lines(skipped);
        parsed.text = block.buffer;
    } else {
        let lines = lines(text, skipped);
        parse_localised(text, &lines, options, &mut parsed);
        parsed.lines = lines.len() as u32;
        parsed.original = Some(block.buffer);
    }
    parsed
}

/// The lines of a block.
fn lines(text: &[u8], skipped: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut at = skipped;
    while at < text.len() {
        let end = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |end| at + end + 1);
        let number = lines.len() as u32;
        lines.push(Line { number, column: 0, span: Span::new(at, trimmed(text, at, end)) });
        at = end;
    }
    lines
}

/// The elements of a block, each with the line and the column where it begins.
fn lines_of(text: &[u8], elements: &Elements) -> Vec<Line> {
    let (mut number, mut column, mut at) = (0, elements.column, 0);
    let place = |span: &Span| {
        let start = span.start as usize;
        let between = &text[at..start];
        number += memchr::memchr_iter(b'\n', between).count() as u32;
        column =
            memchr::memrchr(b'\n', between).map_or(column + between.len(), |last| between.len() - last - 1);
        at = start;
        Line { number, column: column as u32, span: *span }
    };
    elements.spans.iter().map(place).collect()
}

/// Makes the place of a fault the line in which it is: an element may have several.
fn locate(text: &[u8], parsed: &mut ParsedBlock) {
    for bad in &mut parsed.bad {
        let start = bad.line.span.start as usize;
        let before = &text[start..(start + bad.at).min(text.len())];
        if let Some(last) = memchr::memrchr(b'\n', before) {
            bad.line.number += memchr::memchr_iter(b'\n', before).count() as u32;
            bad.line.column = 0;
            bad.at = before.len() - last - 1;
        }
    }
}

/// Reads texts that are one object each. Line ends in one are space like any other; an object's line is its number.
pub(crate) fn parse_each(objects: &[&[u8]], options: &ParseOptions, mut parsed: ParsedBlock) -> ParsedBlock {
    parsed.clear();
    parsed.keys.clone_from(&options.keys);
    let mut text = std::mem::take(&mut parsed.text);
    text.clear();
    let mut ends = Vec::with_capacity(objects.len());
    for object in objects {
        // Of one that is too long so much is enough to see it.
        text.extend_from_slice(&object[..object.len().min(options.max_line.saturating_add(1))]);
        ends.push(text.len());
        // So that no two of them make a character together.
        text.push(b'\n');
    }
    Parser::new(options, &text, &mut parsed).parse_objects(&ends);
    parsed.text = text;
    parsed
}

/// The same where only some languages are wanted: each row is copied without the others, then read.
fn parse_localised(original: &[u8], lines: &[Line], options: &ParseOptions, parsed: &mut ParsedBlock) {
    let mut text = Vec::with_capacity(original.len());
    let mut copies = Vec::with_capacity(lines.len());
    for line in lines {
        let (bytes, start) = (line.span.of(original), text.len());
        if simdutf8::basic::from_utf8(bytes).is_err()
            || !languages::keep(bytes, &options.languages, &mut text)
        {
            text.extend_from_slice(bytes);
        }
        copies.push(Line { span: Span::new(start, text.len()), ..*line });
        // So that no two of them make a character together, and no two copies begin at the same place.
        text.push(b'\n');
    }
    Parser::new(options, &text, parsed).parse_elements(&copies);
    // A row is shown as it was.
    let was = |line: &mut Line| {
        if let Ok(index) = copies.binary_search_by_key(&line.span.start, |copy| copy.span.start) {
            line.span = lines[index].span;
        }
    };
    parsed.rows.iter_mut().for_each(|row| was(&mut row.line));
    for bad in &mut parsed.bad {
        was(&mut bad.line);
        // Where it is wrong is to be said of the line as it was.
        let mut alone = ParsedBlock { keys: options.keys.clone(), ..ParsedBlock::default() };
        let bytes = bad.line.span.of(original);
        let line = Line { span: Span::new(0, bytes.len()), ..bad.line };
        Parser::new(options, bytes, &mut alone).parse_elements(&[line]);
        bad.at = alone.bad.first().map_or(bad.at, |alone| alone.at);
    }
    parsed.text = text;
}

/// Where a line ends without its line end.
pub(super) fn trimmed(text: &[u8], start: usize, end: usize) -> usize {
    let line = &text[start..end];
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    start + line.strip_suffix(b"\r").unwrap_or(line).len()
}
