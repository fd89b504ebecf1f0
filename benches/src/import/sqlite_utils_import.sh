# Imports JSONL into SQLite with sqlite-utils: sqlite_utils_import.sh PROGRAM FOLDER DATABASE
set -e
for file in "$2"/*.jsonl; do
    "$1" insert "$3" "$(basename "$file" .jsonl)" "$file" --nl --pk _key --alter --silent
done
