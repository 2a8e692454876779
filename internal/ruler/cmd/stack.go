package rulercmd

import "github.com/weirdb/weir/internal/ruler/demo"

// Stack is weir demo --stack; the verb is registered by the benchmark of the proxy.
func Stack() *demo.Config { return &demo.Config{} }
