// Package dump moves what a key-value cluster holds into a file and back: weir kv
// export and weir kv import.
//
// A dump is text, one JSON object a line: a head, an item a line by rising key, and a
// last line with how many there are and the SHA-256 of all lines before it, so that a
// dump that was cut short or altered is refused before anything is written.
//
//	{"weir_kv_export":1,"cluster":"weir","time":"2026-11-22T22:00:00Z"}
//	{"key":"config/limit","value":"100","revision":17}
//	{"key":"lock","value":"me","revision":18,"ttl_ms":4200}
//	{"end":true,"keys":2,"sha256":"…"}
//
// Keys and values that are no UTF-8 text are in key_base64 and value_base64. What weir kv
// range --limit none --json prints is read, too; it has no times to live.
package dump
