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
			{"N", "join a group, and wait up to N milliseconds for other writes, 1000 at most; 0 is off", "batch:10"},
			{"off", "never join a group, whatever `--batch` and its rules say", "batch:off"},
		}},
		{Key: "traceparent", Effect: "makes a span of the statement, where `--otlp-endpoint` names a collector", Values: []HintValue{
			{"W3C", "the trace that the span belongs to; one that is not sampled makes none", "traceparent:00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		}},
		{Key: "file", Effect: "is shown with statements of the same form: in `SHOW STATEMENTS` and in the slow log, of the one that came last", Values: []HintValue{{"PATH", "the source file that the statement comes from", "file:orders.go"}}},
		{Key: "line", Effect: "the same", Values: []HintValue{{"N", "the line in that file", "line:42"}}},
		{Key: "ttl", Effect: "lets an answer to a read be kept, and given to others who ask the same", Values: []HintValue{
			{"N", "an answer up to N seconds old will do, 31536000 at most, with a point if need be (0.5); one up to twice as old is given while a new one is fetched; 0 is none", "ttl:60"},
		}},
		{Key: "tag", Effect: "names a cached answer, for `PURGE CACHE`", Values: []HintValue{
			{"NAME", "a name of up to 64 bytes; it is part of what tells answers apart", "tag:prices"},
		}},
	}
}
