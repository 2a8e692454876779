package wire

// FastQuorum returns how many of n voters, including the leader, must have an operation so that
// it survives any change of leader before it is ordered.
//
// A new leader asks a majority q. Of those, at least fast+q-n have a completed operation, and
// that must be more than half of q, since no witness has two operations that conflict. For n =
// 2f+1 this is the f + ceil(f/2) + 1 of CURP (Park and Ousterhout, NSDI 2019).
func FastQuorum(n int) int {
	q := n/2 + 1
	return n - (q+1)/2 + 1
}
