//! Texts of the generated files: words in eight languages, and sentences and names made of them.

use std::sync::LazyLock;

use fastrand::Rng;

use crate::random;

/// A language: its code and some of its words.
pub(super) struct Language {
    pub(super) code: &'static str,
    words: Vec<&'static str>,
}

/// A row for each language: its code, then its words.
const WORDS: &str = "\
de der die das Schiff Rumpf Panzer Schild Antrieb größer über für Träger Kapazität Moleküle Erz Händler Flotte \
    Strahlung Zerstörer Ausrüstung
en the ship hull armor shield drive larger over for carrier capacity molecules ore trader fleet radiation destroyer \
    equipment ancient refined
es la nave casco blindaje escudo motor mayor sobre para portanaves capacidad moléculas mineral comerciante flota \
    radiación destructor equipo señal
fr le vaisseau coque blindage bouclier propulsion supérieur sur pour porteur capacité molécules minerai négociant \
    flotte radiation destroyer équipement
ja 艦船 船体 アーマー シールド 推進 大型 上 用 空母 容量 分子 鉱石 商人 艦隊 放射線 駆逐艦 装備 古代 精製
ko 함선 선체 장갑 실드 추진 대형 위 용 캐리어 용량 분자 광석 상인 함대 방사선 디스트로이어 장비 고대 정제
ru корабль корпус броня щит двигатель больше над для носитель ёмкость молекулы руда торговец флот излучение эсминец \
    оборудование древний
zh 舰船 船体 装甲 护盾 推进 大型 上 用 航母 容量 分子 矿石 商人 舰队 辐射 驱逐舰 设备 古代 精炼";

pub(super) static LANGUAGES: LazyLock<Vec<Language>> = LazyLock::new(|| {
    let language = |row: &'static str| {
        let (code, words) = row.split_once(' ').expect("a row has a code and words");
        Language { code, words: words.split(' ').collect() }
    };
    WORDS.lines().map(language).collect()
});

/// Index of the language used where a text has only one.
pub(super) const ENGLISH: usize = 1;

/// Ends of sentences, escaped as in JSON. More than half need unescaping, as in the real data.
const TAILS: [&str; 12] = [
    ".",
    ".",
    ".",
    ".",
    r".\r\n\r\n",
    r#". <b>\"tier\"</b>"#,
    r". \u00e9\u2013\u2019",
    r#".<br><a href=\"showinfo:34\">Tritanium</a>"#,
    r".\n- ",
    r"! \t",
    r". C:\\path",
    r". \ud83d\ude80",
];

const POOL_SIZE: usize = 3_000;

/// Sentences and names in every language, escaped. All files of a folder use them.
pub(super) struct PhrasePools {
    sentences: Vec<Vec<String>>,
    names: Vec<Vec<String>>,
}

impl PhrasePools {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = random::stream(seed, 0);
        let sentences = LANGUAGES.iter().map(|language| {
            let sentence = |_| {
                let words = random.usize(4..22);
                language.random_words(words, &mut random, str::to_owned) + TAILS[random.usize(..TAILS.len())]
            };
            (0..POOL_SIZE).map(sentence).collect()
        });
        let sentences = sentences.collect();
        let names = LANGUAGES.iter().map(|language| {
            let name = |_| {
                let words = random.usize(1..4);
                let name = language.random_words(words, &mut random, capitalized);
                format!("{name} {}", random.usize(1..9_999))
            };
            (0..POOL_SIZE).map(name).collect()
        });
        PhrasePools { sentences, names: names.collect() }
    }

    pub(super) fn sentence(&self, language: usize, random: &mut Rng) -> &str {
        &self.sentences[language][random.usize(..POOL_SIZE)]
    }

    pub(super) fn name(&self, language: usize, random: &mut Rng) -> &str {
        &self.names[language][random.usize(..POOL_SIZE)]
    }
}

impl Language {
    fn random_words(&self, words: usize, random: &mut Rng, format: fn(&str) -> String) -> String {
        let words: Vec<String> = (0..words).map(|_| format(self.words[random.usize(..self.words.len())])).collect();
        // Japanese and Chinese have no spaces between words.
        words.join(if ["ja", "zh"].contains(&self.code) { "" } else { " " })
    }
}

fn capitalized(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}
