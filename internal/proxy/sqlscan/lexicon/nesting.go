package lexicon

// MaxDepth is how many open parentheses a Nesting knows of.
const MaxDepth = 64

// A Nesting is where a scanner is in the parentheses of a statement, and what of it
// begins there: the statement's verb, which may stand in parentheses or behind a list
// that WITH begins, or the main verb of such a list.
//
// It needs no stack: what it must know of an enclosing parenthesis is one bit per depth.
type Nesting struct {
	Depth int // open parentheses
	// Expect: the statement's verb has not been seen; MainDepth is where it will be.
	Expect    bool
	MainDepth int

	withs uint64 // bit d: at depth d a WITH list waits for its main verb
}

// Begin makes ready for a statement.
func (n *Nesting) Begin() { *n = Nesting{Expect: true} }

// BeginInner makes ready for the statement that begins here, within another one.
func (n *Nesting) BeginInner() { n.Expect, n.MainDepth = true, n.Depth }

// Open takes "(" into account; behind says whether ")" stands in front of it. It reports
// false if that is too deep.
func (n *Nesting) Open(behind bool) bool {
	if n.Expect || n.withs != 0 {
		n.await(behind)
	}
	n.Depth++
	return n.Depth <= MaxDepth
}

// await takes into account what may stand in the parenthesis that opens.
func (n *Nesting) await(behind bool) {
	if n.Depth >= MaxDepth {
		return
	}
	bit := uint64(1) << n.Depth
	if n.withs&bit != 0 && behind { // WITH ... (SELECT ...)
		n.withs &^= bit
		if n.Main() {
			n.MainDepth++
		}
	} else if n.withs == 0 && n.Main() {
		n.MainDepth++
	}
}

// Close takes ")" into account. It reports false if there was no "(".
func (n *Nesting) Close() bool {
	if n.Depth == 0 {
		return false
	}
	n.withs &^= uint64(1) << n.Depth // deeper than a bit tells: no bit
	n.Depth--
	return true
}

// Main reports whether the statement's verb is expected here.
func (n *Nesting) Main() bool { return n.Expect && n.Depth == n.MainDepth }

// Listed reports whether this is in a WITH list, or at its end.
func (n *Nesting) Listed() bool { return n.Depth < MaxDepth && n.withs&(1<<n.Depth) != 0 }

// With takes WITH into account; inside says whether "(" stands in front of it. It reports
// whether a list begins here.
func (n *Nesting) With(inside bool) bool {
	if n.Depth < MaxDepth && (n.Main() || inside) {
		n.withs |= 1 << n.Depth
		return true
	}
	return false
}

// Verb takes into account that a word begins what was expected here: the main part of a
// list, or the statement.
func (n *Nesting) Verb() {
	if n.Listed() {
		n.withs &^= 1 << n.Depth
	}
	if n.Main() {
		n.Expect = false
	}
}

// NoVerb takes into account that what stands here begins no command.
func (n *Nesting) NoVerb() {
	if n.Main() && n.withs == 0 {
		n.Expect = false
	}
}
