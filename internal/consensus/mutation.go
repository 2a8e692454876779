package consensus

// Mutations are deliberate bugs. The simulator switches each of them on and
// must notice; no program outside its tests sets any. docs/kv-simulation.md
// says what each breaks and which check catches it.
type Mutations struct{}
