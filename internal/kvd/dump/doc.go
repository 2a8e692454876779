// Package dump exports the contents of a key-value cluster to a file and imports them: weir kv
// export and weir kv import.
//
// A dump is text with one JSON object per line: a head, the items by ascending key, and a last
// line with the number of items and the SHA-256 of all previous lines, so that a truncated or
// altered dump is refused before anything is written.
//
//	{"weir_kv_export":1,"cluster":"weir","time":"2026-11-22T22:00:00Z"}
//	{"key":"config/limit","value":"100","revision":17}
//	{"key":"lock","value":"me","revision":18,"ttl_ms":4200}
//	{"end":true,"keys":2,"sha256":"…"}
//
// Keys and values that are not valid UTF-8 are in key_base64 and value_base64. The output of
// weir kv range --limit none --json can be imported as well; it has no times to live.
package dump
