package rulercmd

import "github.com/weirdb/weir/internal/ruler/demo"

// Stack is weir demo --stack, which the benchmark of the proxy has a verb for.
func Stack() *demo.Config { return &demo.Config{} }
