package sqlscan

// A HintKey describes a hint, for the reference.
type HintKey struct {
	Key string
	// Values are the values that it takes. "N" stands for a number.
	Values []HintValue
	// Effect says what the hint does. If empty, the hint is parsed and has no effect yet.
	Effect string
}

// A HintValue is a value of a hint.
type HintValue struct {
	Value   string // as it is written, with N for a number
	Means   string
	Example string
}

// HintKeys are the hints that weir knows. Others in the form key='value' are of
// SQLCommenter and are passed over.
func HintKeys() []HintKey {
	return []HintKey{
		{Key: "batch", Effect: "lets a write join a group", Values: []HintValue{
			{"", "join a group; weir finds how long to wait, usually not at all", "batch"},
			{"auto", "the same", "batch:auto"},
			{"N", "join a group, and wait up to N milliseconds for other writes, at most 1000; 0 means off", "batch:10"},
			{"off", "never join a group, whatever `--batch` and its rules say", "batch:off"},
		}},
		{Key: "traceparent", Effect: "sends a span of the statement to the collector that `--otlp-endpoint` names; without a collector it has no effect", Values: []HintValue{
			{"W3C", "the trace that the span belongs to; if the trace is not sampled, no span is sent", "traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		}},
		{Key: "file", Effect: "names the place in the program that a statement comes from; `SHOW STATEMENTS` and the slow log show it for the last statement of each form", Values: []HintValue{{"PATH", "the source file", "file:orders.go"}}},
		{Key: "line", Effect: "is shown with `file`", Values: []HintValue{{"N", "the line in that file", "line:42"}}},
		{Key: "ttl", Effect: "lets weir cache the answer to a read, and give it to clients that send the same read", Values: []HintValue{
			{"N", "an answer may be up to N seconds old, at most 31536000; fractions such as 0.5 are valid; an answer up to twice as old is returned while a new one is fetched; 0 does not use the cache", "ttl:60"},
		}},
		{Key: "tag", Effect: "names a cached answer, for `PURGE CACHE NAME`", Values: []HintValue{
			{"NAME", "a name of up to 64 bytes; reads with different tags share no answer", "tag:prices"},
		}},
	}
}
