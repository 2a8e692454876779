package sqlscan

// InsertShape is an INSERT of one row of VALUES, cut where further rows may be
// put: Prefix + Tuple [+ ", " + Tuple ...] + Suffix is a statement again. The
// strings are substrings of the text.
type InsertShape struct {
	Table     string     // the table as written, qualified or not
	Prefix    string     // from INSERT to just after VALUES
	Tuple     string     // the row, from "(" to ")"
	Suffix    string     // RETURNING and its list with what stands before it; "" without RETURNING
	Arity     int        // values in Tuple
	Params    []ParamRef // parameters in Tuple in order of their place
	MaxParam  int        // the highest n of $n in Tuple; 0 without parameters
	Returning bool
	Literals  bool // Tuple holds at least one constant
}

// ParamRef is the place of one $n: Tuple[Start:End] == "$N".
type ParamRef struct {
	Start, End int
	N          int
}

// Insert takes apart an INSERT that may share a multi-row statement with others.
func Insert(sql string) (InsertShape, bool) { return InsertShape{}, false }

// AppendTuple appends Tuple with every $n renumbered to $(base+n).
func (s InsertShape) AppendTuple(dst []byte, base int) []byte { return append(dst, s.Tuple...) }

// ShapeKey hashes what inserts that may share one statement have in common.
// It is unpredictable and differs from process to process. Equal keys
// are a strong hint only: Compatible decides.
func (s InsertShape) ShapeKey() uint64 { return 0 }

// Compatible reports whether s and o may share one multi-row statement: the
// same Prefix, Suffix and Arity and, if either has parameters, the same Tuple.
func (s InsertShape) Compatible(o InsertShape) bool { return false }
