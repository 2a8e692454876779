package sqlscan

// Fingerprint returns a stable 64-bit hash of what Normalize returns uncut.
func Fingerprint(sql string) uint64 { return 0 }

// Normalize returns a readable form of sql for metrics and logs: words in lower
// case, literals and parameters as ?, IN and VALUES lists collapsed, cut at max
// bytes.
func Normalize(sql string, max int) string { return "" }
