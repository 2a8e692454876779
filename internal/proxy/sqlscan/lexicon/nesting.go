package lexicon

// MaxDepth is the number of nested parentheses that a Nesting can track.
const MaxDepth = 64

// A Nesting tracks a scanner's position in the parentheses of a statement, and where the next
// verb is expected: the statement's verb, which may be in parentheses or after a WITH list, or
// the main verb after such a list.
//
// It needs no stack: it keeps one bit for each enclosing parenthesis.
type Nesting struct {
	Depth int // open parentheses
	// Expect says that the statement's verb was not seen yet; it will be at depth MainDepth.
	Expect    bool
	MainDepth int

	withs uint64 // bit d: at depth d, a WITH list waits for its main verb
}

// Begin resets the Nesting for a statement.
func (n *Nesting) Begin() { *n = Nesting{Expect: true} }

// BeginInner prepares for the statement that begins here, within another one.
func (n *Nesting) BeginInner() { n.Expect, n.MainDepth = true, n.Depth }

// Open processes "("; behind says whether it follows a ")". It returns false if the nesting is
// too deep.
func (n *Nesting) Open(behind bool) bool {
	if n.Expect || n.withs != 0 {
		n.await(behind)
	}
	n.Depth++
	return n.Depth <= MaxDepth
}

// await updates what is expected within the parenthesis that opens.
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

// Close processes ")". It returns false if there was no "(".
func (n *Nesting) Close() bool {
	if n.Depth == 0 {
		return false
	}
	n.withs &^= uint64(1) << n.Depth // too deep for a bit: nothing to clear
	n.Depth--
	return true
}

// Main reports whether the statement's verb is expected here.
func (n *Nesting) Main() bool { return n.Expect && n.Depth == n.MainDepth }

// Listed reports whether the position is in a WITH list, or at its end.
func (n *Nesting) Listed() bool { return n.Depth < MaxDepth && n.withs&(1<<n.Depth) != 0 }

// With processes WITH; inside says whether it follows a "(". It reports whether a list begins
// here.
func (n *Nesting) With(inside bool) bool {
	if n.Depth < MaxDepth && (n.Main() || inside) {
		n.withs |= 1 << n.Depth
		return true
	}
	return false
}

// Verb records that the expected verb begins here: that of the statement, or the main verb
// after a list.
func (n *Nesting) Verb() {
	if n.Listed() {
		n.withs &^= 1 << n.Depth
	}
	if n.Main() {
		n.Expect = false
	}
}

// NoVerb records that no command begins here.
func (n *Nesting) NoVerb() {
	if n.Main() && n.withs == 0 {
		n.Expect = false
	}
}
