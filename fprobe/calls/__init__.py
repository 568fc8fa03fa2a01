"""Recording the calls of a trace, and showing them as trees and folded stacks."""
