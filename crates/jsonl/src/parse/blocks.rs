//! Parses a block: finds its rows and their positions in the file.

use super::{BYTE_ORDER_MARK, ParseOptions, Parser};
use crate::block::Block;
use crate::document::Elements;
use crate::languages;
use crate::parse_error::ParseErrorKind;
use crate::parsed_block::{BadLine, Line, ParsedBlock, Span};

/// Parses all lines of a block. `parsed` is an earlier result whose memory is reused.
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
            Parser::new(options, text, &mut parsed).parse_rows(lines, true);
        } else {
            parse_localised(text, &lines, options, &mut parsed);
        }
        locate(text, &mut parsed);
        parsed.lines = elements.lines as u32;
        let text = if options.languages.is_empty() { &mut parsed.text } else { parsed.original.insert(Vec::new()) };
        *text = block.buffer;
        return parsed;
    }
    let skipped = if block.is_first && text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
    let mut count = 0;
    let lines = lines(text, skipped).inspect(|_| count += 1);
    if options.languages.is_empty() {
        Parser::new(options, text, &mut parsed).parse_rows(lines, false);
        parsed.text = block.buffer;
    } else {
        parse_localised(text, &lines.collect::<Vec<_>>(), options, &mut parsed);
        parsed.original = Some(block.buffer);
    }
    parsed.lines = count;
    parsed
}

/// Returns the lines of a text from the byte `at`, without their line ends.
fn lines(text: &[u8], mut at: usize) -> impl Iterator<Item = Line> {
    (0..).map_while(move |number| {
        let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
        let length = memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1);
        let line = rest[..length].strip_suffix(b"\n").unwrap_or(rest);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let span = Span::new(at, at + line.len());
        at += length;
        Some(Line { number, column: 0, span })
    })
}

/// Finds the line and the column where each element of a block begins.
fn lines_of(text: &[u8], elements: &Elements) -> Vec<Line> {
    let (mut number, mut column, mut at) = (0, elements.column, 0);
    let line_of = |span: &Span| {
        let start = span.start as usize;
        let between = &text[at..start];
        number += memchr::memchr_iter(b'\n', between).count() as u32;
        column = memchr::memrchr(b'\n', between).map_or(column + between.len(), |last| between.len() - last - 1);
        at = start;
        Line { number, column: column as u32, span: *span }
    };
    elements.spans.iter().map(line_of).collect()
}

/// Moves errors from the start of an element to their line, because an element may span several lines.
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

/// Parses texts of one object each. Line ends in a text are white space. The line number is the object's index.
pub(crate) fn parse_each(objects: &[&[u8]], options: &ParseOptions, mut parsed: ParsedBlock) -> ParsedBlock {
    parsed.clear();
    parsed.keys.clone_from(&options.keys);
    let mut text = std::mem::take(&mut parsed.text);
    text.clear();
    let mut rows = Vec::with_capacity(objects.len());
    for (object, number) in objects.iter().zip(0..) {
        let start = text.len();
        // One byte more than the limit suffices to detect an object that is too long.
        text.extend_from_slice(&object[..object.len().min(options.max_line.saturating_add(1))]);
        rows.push(Line { number, column: 0, span: Span::new(start, text.len()) });
        // Separates them, so that bytes of two objects do not form one character.
        text.push(b'\n');
    }
    let is_blank = |row: &&Line| row.span.of(&text).iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    let reason = ParseErrorKind::NotAnObject("nothing");
    parsed.bad.extend(rows.iter().filter(is_blank).map(|line| BadLine { line: *line, at: 0, reason: reason.clone() }));
    Parser::new(options, &text, &mut parsed).parse_rows(rows, false);
    parsed.lines = objects.len() as u32;
    parsed.text = text;
    parsed
}

/// Parses rows of which only some languages are kept: copies each row without the others, then parses the copy.
fn parse_localised(original: &[u8], lines: &[Line], options: &ParseOptions, parsed: &mut ParsedBlock) {
    let mut text = Vec::with_capacity(original.len());
    let mut copies = Vec::with_capacity(lines.len());
    for line in lines {
        let (bytes, start) = (line.span.of(original), text.len());
        if simdutf8::basic::from_utf8(bytes).is_err() || !languages::keep(bytes, &options.languages, &mut text) {
            text.extend_from_slice(bytes);
        }
        copies.push(Line { span: Span::new(start, text.len()), ..*line });
        // Separates them, so that two rows do not form one character and no two copies begin at the same offset.
        text.push(b'\n');
    }
    Parser::new(options, &text, parsed).parse_rows(copies.iter().copied(), true);
    // Positions refer to the original text.
    let restore = |line: &mut Line| {
        if let Ok(index) = copies.binary_search_by_key(&line.span.start, |copy| copy.span.start) {
            line.span = lines[index].span;
        }
    };
    parsed.rows.iter_mut().for_each(|row| restore(&mut row.line));
    for bad in &mut parsed.bad {
        restore(&mut bad.line);
        // Parse the original line to find the position of the error in it.
        let mut alone = ParsedBlock { keys: options.keys.clone(), ..ParsedBlock::default() };
        let bytes = bad.line.span.of(original);
        let line = Line { span: Span::new(0, bytes.len()), ..bad.line };
        Parser::new(options, bytes, &mut alone).parse_rows([line], true);
        bad.at = alone.bad.first().map_or(bad.at, |alone| alone.at);
    }
    parsed.text = text;
}
