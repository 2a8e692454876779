package storm_test

import "github.com/anishathalye/porcupine"

// A registerOp is a put or a get of one key.
type registerOp struct {
	write bool
	value string
}

// registers is what porcupine checks histories against.
var registers = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		op := input.(registerOp)
		if op.write {
			return true, op.value
		}
		return output.(string) == state.(string), state
	},
}
